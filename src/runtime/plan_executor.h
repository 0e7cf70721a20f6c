// PlanExecutor: the part that executors share whatever the device: the plan, its streams and the latest spans.
#pragma once
#include <array>
#include <chrono>
#include <vector>

#include "bound_plan.h"
#include "device_times.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ir/micro_batches.h"

namespace lancet::runtime {

class PlanExecutor : public Executor, protected SingleSteps {
 public:
  bool has_output(std::string_view name) const override { return plan_.program.output(name).valid(); }
  const ir::Plan& plan() const override { return plan_; }
  std::span<const Span> spans() const override { return measured_[described_].spans; }
  StepTimes times() const override {
    return stream_times(plan_.program, measured_[described_].spans, measured_[described_].ns);
  }

 protected:
  PlanExecutor(const ir::Plan& plan, const ExecutorOptions& options)
      : plan_(plan), options_(options), streams_(streams_of(plan)), closes_step_(ir::closes_step(plan.program)) {
    measured_.fill({std::vector<Span>(plan.program.instructions.size())});
  }

  // When the instructions ran, and how long the run took.
  struct Measured {
    std::vector<Span> spans;
    std::int64_t ns = 0;
  };
  // Of the latest run of the current kind that was timed.
  Measured& measured() { return measured_[which_.kind()]; }

  void begin_run(Run which) {
    which_ = which;
    if (which.body) described_ = which.kind();
  }
  void start_clock() { start_ = std::chrono::steady_clock::now(); }
  // Nanoseconds since start_clock().
  std::int64_t elapsed() const {
    const auto passed = std::chrono::steady_clock::now() - start_;
    const double dilation = options_.emulated ? options_.emulated->options().dilation : 1;
    return std::int64_t(double(std::chrono::nanoseconds(passed).count()) / dilation);
  }
  Span& span_of(std::int32_t instruction) { return measured().spans[static_cast<std::size_t>(instruction)]; }
  std::size_t stream_of(std::int32_t instruction) const {
    return static_cast<std::size_t>(plan_.program.instructions[static_cast<std::size_t>(instruction)].stream);
  }

  // True if the current run leaves the instruction out.
  bool left_out(std::int32_t instruction) const {
    const auto i = static_cast<std::size_t>(instruction);
    if (ir::of_step_before(plan_.program.instructions[i])) return !which_.before;
    return closes_step_[i] ? !which_.closing : !which_.body;
  }

  const ir::Plan plan_;
  const ExecutorOptions options_;
  const Streams streams_;
  const std::vector<bool> closes_step_;  // by instruction
  Run which_;                            // the current run

 private:
  std::array<Measured, Run::kinds> measured_;  // by Run::kind()
  std::size_t described_ = Run::last.kind();   // the kind of the last run with a body
  std::chrono::steady_clock::time_point start_{};
};

}  // namespace lancet::runtime
