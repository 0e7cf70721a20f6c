// Where a run begins: anew, at a checkpoint, or with the weights of one; and what of its config the checkpoint decides.
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
  std::string resume = {};     // "step-000100" of this run, or a checkpoint's folder; empty: the newest whole one
  std::string init_from = {};  // a run or checkpoint whose weights a run without checkpoints begins with
};

struct ResumePoint {
  enum class Kind { from_scratch, resume, weights };
  Kind kind = Kind::from_scratch;
  bool asked = false;                          // the checkpoint was named: no other one will do
  std::vector<std::filesystem::path> folders;  // to be tried in turn
};

// Collective, the same on all ranks. The run's own checkpoints, newest first; or the one that request.resume names; or,
// in a run that has none, those of request.init_from. Errors: a name or path that is not there (data), both options
// (config).
Result<ResumePoint> find_resume_point(const config::Config& config, const ResumeRequest& request, comm::Communicator& world);

// How far a run is, in what its config does not say.
struct Position {
  std::int64_t step = 0;    // steps taken
  std::int64_t tokens = 0;  // seen in them
  std::int64_t skipped_steps = 0;
  std::int64_t sample_offset = 0;   // the first row of step s is sample s * rows + sample_offset
  std::int64_t skips_in_a_row = 0;  // the last of skipped_steps, up to the last step
};
std::int64_t rows_of(const config::Config& config, int ranks);  // of a step, over all ranks
Position position_of(const checkpoint::Manifest& manifest, const config::Config& config, int ranks);

// The config that a run goes on with on so many ranks. As the checkpoint has it: the number of experts, where the
// config says experts_per_rank; and the rows of a step, where the config still asks for what the checkpoint was asked
// for. Config errors: what cannot be gone on with. notes: a line for each thing that is not as the config or the
// checkpoint says.
Result<config::Config> adapt(config::Config config, const checkpoint::Checkpoint& from, ResumePoint::Kind kind, int ranks,
                             std::vector<std::string>& notes);

// Of a run at `position`. asked: the config before adapt().
checkpoint::Manifest manifest_of(const config::Config& config, const config::Config& asked, const Position& position,
                                 int ranks, double lr, const std::string& plan_hash);

}  // namespace lancet::run
