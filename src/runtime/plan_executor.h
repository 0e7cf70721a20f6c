// What executors share whatever the device: the plan, its streams, their threads and the latest spans.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "bound_plan.h"
#include "device_times.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ir/micro_batches.h"

namespace lancet::runtime {

// Walks the streams of a plan at the same time, the compute stream on the caller's thread, every other stream on a
// thread of its own, which lives as long as this object. run_step() starts a step by incrementing epoch_, which wakes
// the streams' threads. The step ends when running_, the number of threads that still walk, is 0.
class StreamThreads {
 public:
  using Walk = std::function<void(std::size_t stream)>;

  ~StreamThreads() {
    stopping_.store(true);
    epoch_.fetch_add(1);
    epoch_.notify_all();
  }
  // Starts a thread for each stream that has steps. walk(stream) executes one stream's share of a step. What it uses
  // must outlive this object.
  void start(const Streams& streams, Walk walk) {
    walk_ = std::move(walk);
    for (std::size_t stream = 1; stream < ir::stream_count; ++stream)
      if (!streams[stream].empty()) threads_.emplace_back([this, stream] { serve(stream); });
  }
  // Walks every stream once; returns when all have ended.
  void run_step() {
    running_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
    walk_(0);
    for (int left = running_.load(std::memory_order_acquire); left > 0; left = running_.load(std::memory_order_acquire))
      running_.wait(left, std::memory_order_acquire);
  }

 private:
  void serve(std::size_t stream) {
    for (std::uint32_t seen = 0;;) {
      epoch_.wait(seen, std::memory_order_acquire);
      seen = epoch_.load(std::memory_order_acquire);
      if (stopping_.load()) return;
      walk_(stream);
      if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
    }
  }

  Walk walk_;
  std::atomic<std::uint32_t> epoch_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::jthread> threads_;  // the last member: the threads use all others and must end first
};

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

// Makes an executor that runs on options.accelerator; Executor::create calls it.
Result<std::unique_ptr<Executor>> make_device_executor(const ir::Plan& plan, TensorStore& store,
                                                       const ExecutorOptions& options);

}  // namespace lancet::runtime
