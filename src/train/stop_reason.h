// StopReason: why this rank would end the run before its last step.
#pragma once
#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <string>

#include "lancet/base/clock.h"
#include "run_state.h"

namespace lancet::train {

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
