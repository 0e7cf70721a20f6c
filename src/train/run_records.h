// RunRecords: what a run writes to its folder and logs about its steps. Only rank 0 has a folder.
#pragma once

#include <fmt/format.h>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lancet/run/metrics.h"
#include "lancet/run/run_folder.h"
#include "lancet/runtime/emulated_device.h"
#include "run_state.h"

namespace lancet::train {

// Averages: the mean speed of a run's steps.

// Averages over the steps of the run without the first, which warms up caches.
class Averages {
 public:
  void add(const run::StepRecord& record) {
    if (std::exchange(first_, false)) return;
    ++steps_;
    ms_ += record.step_ms;
    exposed_ += record.exposed_ms;
    tokens_ += record.tokens_per_s * record.step_ms;
    predicted_ = record.predicted_ms.value_or(0);
    late_ += record.late_pct.value_or(0);
  }
  std::string line() const {
    if (steps_ == 0) return "";
    return fmt::format("average over {} steps: {:.1f} ms a step, {:.0f} tok/s, exposed {:.1f} ms", steps_, ms_ / steps_,
                       tokens_ / ms_, exposed_ / steps_);
  }
  // A line if the machine could not keep up with an emulated device; else empty.
  std::string lateness() const {
    if (steps_ == 0 || late_ / steps_ <= runtime::EmulatedDevice::most_late_pct) return "";
    return fmt::format(
        "messages started late by {:.1f}% of a step, more than {}%: this machine does not keep up with the emulated "
        "device, so times do not hold; raise emulated.dilation",
        late_ / steps_, runtime::EmulatedDevice::most_late_pct);
  }
  // A line if steps took much longer than predicted; else empty.
  std::string surprise() const {
    if (steps_ == 0 || predicted_ <= 0 || ms_ / steps_ < far_off * predicted_) return "";
    return fmt::format(
        "steps took {:.1f} times the predicted {:.1f} ms: the machine or its network is busier or slower than "
        "when it was profiled (lancet profile --renew all measures again), or more threads compute than it has cores",
        ms_ / steps_ / predicted_, predicted_);
  }
  // The expected seconds of `steps` more steps; empty if none was timed yet.
  std::optional<double> seconds(std::int64_t steps) const {
    if (steps == 0) return 0;
    return steps_ > 0 ? std::optional(ms_ / steps_ * 1e-3 * double(steps)) : std::nullopt;
  }

 private:
  static constexpr double far_off = 1.5;  // measured over predicted
  bool first_ = true;
  double steps_ = 0, ms_ = 0, exposed_ = 0, tokens_ = 0;
  double late_ = 0;       // percent
  double predicted_ = 0;  // ms of a step; 0: not predicted
};

class RunRecords {
 public:
  explicit RunRecords(const RunState& state) : state_(state) {}

  // Creates and locks the folder; nothing on other ranks, as for open().
  Status take_folder();
  // Writes config.json and plan.ir and opens the records, once the trainer exists.
  Status open(bool resumes);
  // True on rank 0 if the records hold the held-out loss of the step after which the run resumes.
  bool has_held_out() const { return state_.is_rank0() && folder_->has_held_out(); }

  // Collective: a run whose folder is gone ends before it writes to a folder of that name that is another run's.
  Status check_folder() const;

  // A step whose norm is not known yet is recorded when completed() brings it.
  void step(const run::StepRecord& record);
  // grad_norm: of the step that waits for it, if one does; empty if it stays unknown.
  void completed(std::optional<double> grad_norm);
  void plan();  // replaces plan.ir by the trainer's plan
  void trace(const std::string& text);
  void held_out(double loss);
  // Logs the averages over the run's steps.
  void log_averages() const;

 private:
  // A step that waits for its norm, with what the trainer keeps until the next one.
  struct Open {
    run::StepRecord record;
    std::vector<run::LayerLoad> layers;
    std::vector<std::vector<double>> expert_tokens;  // by layer
  };
  void write(const run::StepRecord& record, std::span<const run::LayerLoad> layers);

  const RunState& state_;
  std::optional<Open> open_;
  std::optional<run::RunFolder> folder_;
  Averages averages_;
};

}  // namespace lancet::train
