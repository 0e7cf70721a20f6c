// PlanExecutor: the part that executors share whatever the device: the plan, its streams and the last run's spans.
#pragma once
#include <chrono>
#include <vector>

#include "bound_plan.h"
#include "lancet/ir/micro_batches.h"
#include "step_times.h"

namespace lancet::runtime {

class PlanExecutor : public Executor, protected SingleSteps {
 public:
  bool has_output(std::string_view name) const override { return plan_.program.output(name).valid(); }
  const ir::Plan& plan() const override { return plan_; }
  std::span<const Span> spans() const override { return spans_; }
  StepTimes times() const override { return stream_times(plan_.program, spans_, step_ns_); }

 protected:
  PlanExecutor(const ir::Plan& plan, const ExecutorOptions& options)
      : plan_(plan),
        options_(options),
        streams_(streams_of(plan)),
        closes_step_(ir::closes_step(plan.program)),
        spans_(plan.program.instructions.size()) {}

  void start_clock() { start_ = std::chrono::steady_clock::now(); }
  // Nanoseconds since start_clock().
  std::int64_t elapsed() const {
    const auto passed = std::chrono::steady_clock::now() - start_;
    const double dilation = options_.emulated ? options_.emulated->options().dilation : 1;
    return std::int64_t(double(std::chrono::nanoseconds(passed).count()) / dilation);
  }
  Span& span_of(std::int32_t instruction) { return spans_[static_cast<std::size_t>(instruction)]; }
  std::size_t stream_of(std::int32_t instruction) const {
    return static_cast<std::size_t>(plan_.program.instructions[static_cast<std::size_t>(instruction)].stream);
  }

  // True if the current run leaves the instruction out.
  bool left_out(std::int32_t instruction) const {
    return which_ == Run::earlier && closes_step_[static_cast<std::size_t>(instruction)];
  }

  const ir::Plan plan_;
  const ExecutorOptions options_;
  const Streams streams_;
  const std::vector<bool> closes_step_;  // by instruction
  Run which_ = Run::last;                // the current run
  std::vector<Span> spans_;
  std::int64_t step_ns_ = 0;

 private:
  std::chrono::steady_clock::time_point start_{};
};

}  // namespace lancet::runtime
