// How a run starts: from scratch, resumed from a checkpoint, or with the weights of one; and how its config adapts to
// the checkpoint and the number of ranks.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lancet/checkpoint/checkpoint.h"
#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"

namespace lancet::run {

// How the user asks a run to start (the command line's --resume and --init-from).
struct ResumeRequest {
  std::string resume = {};  // "step-000100" of this run, or a checkpoint's folder; empty: the newest whole one
  // A run, a checkpoint or a folder of Hugging Face's format, whose weights initialise a run that has no checkpoints.
  std::string init_from = {};
};

struct ResumePoint {
  enum class Kind { from_scratch, resume, weights };
  Kind kind = Kind::from_scratch;
  bool asked = false;                          // the user named the checkpoint: no other one may replace it
  std::vector<std::filesystem::path> folders;  // to be tried in this order
};

// Collective; the same on all ranks. Returns the checkpoint that request.resume names, or else the run's own
// checkpoints, newest first, or else those of request.init_from. Data error: a name or path does not exist. Config
// error: both options are set.
Result<ResumePoint> find_resume_point(const config::Config& config, const ResumeRequest& request,
                                      comm::Communicator& world);

// The data error of a folder that is neither a run's with checkpoints nor a checkpoint nor of Hugging Face's format.
Error no_model_in(const std::filesystem::path& folder);

// The progress of a run.
struct Position {
  std::int64_t step = 0;    // steps taken
  std::int64_t tokens = 0;  // trained on in these steps
  std::int64_t skipped_steps = 0;
  std::int64_t sample_offset = 0;     // the first row of step s is sample s * rows + sample_offset
  std::int64_t skips_in_a_row = 0;    // skipped steps at the end, up to the last step
  checkpoint::LoadHistory load = {};  // empty without overlap.replan
  std::int64_t device_bytes = 0;      // that plans may take; 0: unknown
};
std::int64_t rows_of(const config::Config& config, int ranks);  // sequences of a step, over all ranks
Position position_of(const checkpoint::Manifest& manifest, const config::Config& config, int ranks);

// The config with which a run starts from a checkpoint on `ranks` ranks. Two values come from the checkpoint: the
// number of experts, if the config sets experts_per_rank; and the rows of a step, if micro_batch_size and
// gradient_accumulation_steps are those that the checkpoint's run requested. Config errors: the checkpoint cannot be
// used with this config and these ranks. notes: one line for each value that differs from the config or the checkpoint.
Result<config::Config> adapt(config::Config config, const checkpoint::Checkpoint& from, ResumePoint::Kind kind,
                             int ranks, std::vector<std::string>& notes);

// The manifest of a run at `position`. asked: the config before adapt().
checkpoint::Manifest manifest_of(const config::Config& config, const config::Config& asked, const Position& position,
                                 int ranks, double lr, const std::string& plan_hash);

}  // namespace lancet::run
