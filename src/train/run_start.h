// RunStart: where a run begins: it tries the checkpoints of the start in turn, and makes the trainer.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "run_state.h"

namespace lancet::train {

class RunStart {
 public:
  RunStart(RunState& state, const StopReason& stop) : state_(state), stop_(stop) {}

  // Collective: starts from the first whole checkpoint of start.folders, or from scratch. Sets the state's config,
  // position and trainer. Data error: none is whole.
  Status begin(const run::ResumePoint& start);
  void announce(const run::ResumePoint& start) const;
  // True while the run is at the step of the checkpoint that it started from.
  bool is_at_start() const { return !from_.empty() && state_.position.step == from_step_; }

 private:
  Result<bool> begin_at(const std::filesystem::path& folder, run::ResumePoint::Kind kind, Error& damage);
  Status make_trainer();
  void announce_saving() const;

  RunState& state_;
  const StopReason& stop_;
  std::vector<std::string> notes_;
  std::filesystem::path from_;  // the checkpoint that the run started from
  std::int64_t from_step_ = 0;  // its step
  int saved_on_ = 0;            // its number of ranks
};

}  // namespace lancet::train
