// Executes each stream on a host thread: the compute stream on the caller's, every other stream on a thread of its own.
//
// run() starts a step by incrementing epoch_, which wakes the streams' threads. Each thread walks its instructions in
// order; before an instruction it waits until the Progress counters of the other streams have reached the targets in
// the plan's waits. After an instruction it advances its own counter. When a kernel fails, the stream sets its counter
// to stream_failed and aborts all communicators, so that the other streams end too; the first failure is returned. The
// step ends when running_, the number of threads that still walk, is 0.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <limits>
#include <optional>
#include <thread>

#include "bound_plan.h"
#include "executors.h"
#include "lancet/backend/cpu/buffer.h"
#include "lancet/backend/cpu/parallel.h"
#include "step_times.h"

namespace lancet::runtime {
namespace {

using backend::cpu::Buffer;

constexpr std::int32_t stream_failed = std::numeric_limits<std::int32_t>::max();

// The number of a stream's instructions that have ended in the current step.
class Progress {
 public:
  void reset() { done_.store(0, std::memory_order_relaxed); }
  void advance(std::int32_t done) {
    done_.store(done, std::memory_order_release);
    done_.notify_all();
  }
  void fail() { advance(stream_failed); }
  // Waits until `target` instructions have ended; returns false if the stream has failed.
  bool wait(std::int32_t target) const {
    std::int32_t done = done_.load(std::memory_order_acquire);
    while (done < target) {
      done_.wait(done, std::memory_order_acquire);
      done = done_.load(std::memory_order_acquire);
    }
    return done != stream_failed;
  }

 private:
  std::atomic<std::int32_t> done_{0};
};

class CpuExecutor final : public Executor, private SingleSteps {
 public:
  CpuExecutor(const ir::Plan& plan, TensorStore& store, const ExecutorOptions& options)
      : plan_(plan),
        options_(options),
        arena_(options.arena.start ? Block() : Block::on_host(static_cast<std::size_t>(plan.arena_bytes))),
        inputs_(Buffer::zeroed(Addresses::input_bytes(plan.program))),
        addresses_(plan_, store, options.arena.start ? options.arena : arena_.memory(),
                   {inputs_.as<std::byte>(), inputs_.size()}),
        streams_(streams_of(plan)),
        spans_(plan.program.instructions.size()) {}

  ~CpuExecutor() override {
    stopping_.store(true);
    epoch_.fetch_add(1);
    epoch_.notify_all();
  }

  Status bind() {
    backend::cpu::set_threads(options_.threads);
    LANCET_ASSIGN(const auto scratch, runtime::workspace_bytes(plan_, addresses_, ops::find_cpu_kernel, "on the CPU"));
    for (std::size_t stream = 0; stream < ir::stream_count; ++stream)
      workspaces_[stream] = Buffer::raw(scratch[stream]);
    for (const ir::Instruction& instruction : plan_.program.instructions) {
      const auto stream = static_cast<std::size_t>(instruction.stream);
      ops::KernelArgs args = addresses_.arguments(instruction);
      args.comm = options_.communicators[stream];
      args.workspace = workspaces_[stream].as<std::byte>();
      kernels_.push_back(ops::find_cpu_kernel(instruction.op)->bind(args));
    }
    for (std::size_t stream = 1; stream < ir::stream_count; ++stream)
      if (!streams_[stream].empty()) threads_.emplace_back([this, stream] { serve(stream); });
    return {};
  }

  Status run() override {
    backend::cpu::set_threads(options_.threads);
    for (Progress& progress : progress_) progress.reset();
    for (auto& error : errors_) error.reset();
    failed_first_.store(-1, std::memory_order_relaxed);
    start_ = now();
    running_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
    walk(0);
    for (int left = running_.load(std::memory_order_acquire); left > 0; left = running_.load(std::memory_order_acquire))
      running_.wait(left, std::memory_order_acquire);
    step_ns_ = now() - start_;
    return first_error();
  }

  Result<std::optional<NonFinite>> find_non_finite() override {
    backend::cpu::set_threads(options_.threads);
    for (auto& error : errors_) error.reset();
    return search_non_finite(plan_, streams_, addresses_, *this);
  }

  ops::TensorView input(std::string_view name) override { return addresses_.input(name); }
  ops::TensorView output(std::string_view name) const override { return addresses_.output(name); }
  bool has_output(std::string_view name) const override { return plan_.program.output(name).valid(); }
  const ir::Plan& plan() const override { return plan_; }
  std::span<const Span> spans() const override { return spans_; }
  StepTimes times() const override { return stream_times(plan_.program, spans_, step_ns_); }
  std::int64_t workspace_bytes() const override {
    std::int64_t total = 0;
    for (const Buffer& workspace : workspaces_) total += static_cast<std::int64_t>(workspace.size());
    return total;
  }

 private:
  static std::int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  void serve(std::size_t stream) {
    backend::cpu::set_threads(1);  // these streams compute nothing but copies
    for (std::uint32_t seen = 0;;) {
      epoch_.wait(seen, std::memory_order_acquire);
      seen = epoch_.load(std::memory_order_acquire);
      if (stopping_.load()) return;
      walk(stream);
      if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
    }
  }

  void walk(std::size_t stream) {
    std::int32_t done = 0;
    for (const StreamStep& step : streams_[stream]) {
      for (const StreamWait& wait : step.waits)
        if (!progress_[wait.stream].wait(wait.target)) return progress_[stream].fail();
      Span& span = spans_[static_cast<std::size_t>(step.instruction)];
      span.start = now() - start_;
      if (!call(stream, step.instruction)) {
        abort_streams(stream);
        return progress_[stream].fail();
      }
      span.end = now() - start_;
      progress_[stream].advance(++done);
    }
  }

  // Wakes the other streams that block in a communicator, since this stream will not reach what they wait for.
  void abort_streams(std::size_t stream) {
    for (comm::Communicator* comm : options_.communicators)
      if (comm) comm->abort(errors_[stream]->message);
  }

  // SingleSteps
  Status zero(const ops::TensorView& view) override {
    std::memset(view.data, 0, static_cast<std::size_t>(ir::bytes(view.type)));
    return {};
  }
  Status run(std::int32_t instruction) override {
    const auto stream =
        static_cast<std::size_t>(plan_.program.instructions[static_cast<std::size_t>(instruction)].stream);
    if (call(stream, instruction)) return {};
    abort_streams(stream);
    return *errors_[stream];
  }
  Result<ops::TensorView> host_view(const ops::TensorView& view) override { return view; }

  bool call(std::size_t stream, std::int32_t instruction) {
    try {
      const Status status = kernels_[static_cast<std::size_t>(instruction)]();
      if (status.ok()) return true;
      errors_[stream] = error_at(plan_, instruction, status.error());
    } catch (const std::exception& error) {
      errors_[stream] = error_at(plan_, instruction, internal_error(error.what()));
    }
    int none = -1;
    failed_first_.compare_exchange_strong(none, static_cast<int>(stream));
    return false;
  }

  Status first_error() {
    const int stream = failed_first_.load();
    if (stream < 0) return {};
    return *errors_[static_cast<std::size_t>(stream)];
  }

  const ir::Plan plan_;
  const ExecutorOptions options_;
  Block arena_;  // empty if options_.arena is shared
  Buffer inputs_;
  const Addresses addresses_;
  const Streams streams_;
  std::array<Buffer, ir::stream_count> workspaces_;
  std::vector<ops::Kernel> kernels_;  // by instruction
  std::array<Progress, ir::stream_count> progress_;
  std::array<std::optional<Error>, ir::stream_count> errors_;
  std::atomic<int> failed_first_{-1};
  std::vector<Span> spans_;
  std::int64_t start_ = 0, step_ns_ = 0;
  std::atomic<std::uint32_t> epoch_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::jthread> threads_;  // the last member: the threads use all others and must end first
};

}  // namespace

Result<std::unique_ptr<Executor>> make_cpu_executor(const ir::Plan& plan, TensorStore& store,
                                                    const ExecutorOptions& options) {
  auto executor = std::make_unique<CpuExecutor>(plan, store, options);
  LANCET_TRY(executor->bind());
  return std::unique_ptr<Executor>(std::move(executor));
}

}  // namespace lancet::runtime
