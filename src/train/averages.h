// Averages: the mean speed of a run's steps.
#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "lancet/run/metrics.h"
#include "lancet/runtime/emulated_device.h"

namespace lancet::train {

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

}  // namespace lancet::train
