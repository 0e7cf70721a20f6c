// RunState: what the parts of a run share.
#pragma once

#include <fmt/format.h>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>

#include "lancet/base/clock.h"
#include "lancet/base/hash.h"
#include "lancet/data/batches.h"
#include "lancet/ir/plan.h"
#include "lancet/run/resume_point.h"
#include "lancet/train/trainer.h"

namespace lancet::train {

struct RunState {
  const config::Config asked;  // the user's config
  config::Config config;       // as it runs
  comm::Communicator& world;
  const TrainerOptions& options;
  data::TokenizerId tokenizer;  // of the tokens; if they name none, of the checkpoint that the run started from
  run::Position position;
  std::unique_ptr<Trainer> trainer;
  std::string plan_hash;  // of the trainer's plan

  RunState(const config::Config& config, comm::Communicator& world, const TrainerOptions& options)
      : asked(config), config(config), world(world), options(options) {}

  bool is_rank0() const { return world.rank() == 0; }
  checkpoint::FileSystem& files() const { return options.files ? *options.files : checkpoint::disk(); }
  bool can_save() const { return config.holds_model(); }
  void note_plan() { plan_hash = hex(hash64(ir::print(trainer->executor().plan()))); }
};

// StopReason: why this rank would end the run before its last step.
class StopReason {
 public:
  explicit StopReason(const RunState& state) : state_(state) {}

  // The reason to stop now, wherever the run is; empty: none.
  std::string now() const {
    const config::Train& train = state_.config.train;
    const TrainerOptions& options = state_.options;
    const int signal = options.stop ? options.stop->load() : 0;
    if (signal != 0) return fmt::format("SIG{}", ::sigabbrev_np(signal));
    if (train.max_minutes > 0 && seconds_since(begun_) / 60 >= train.max_minutes) return "train.max_minutes";
    if (options.interrupted && options.interrupted()) return "requested";
    return "";
  }
  // The reason to stop after the last step that was taken; empty: none.
  std::string after_step() const {
    if (std::string why = now(); !why.empty()) return why;
    const std::int64_t after = state_.config.train.stop_after;
    return after > 0 && state_.position.step == after ? "train.stop_after" : "";
  }

 private:
  const RunState& state_;
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

}  // namespace lancet::train
