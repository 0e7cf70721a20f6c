// Each stream's thread walks its instructions in order; before an instruction it waits until the Progress counters of
// the other streams have reached the targets in the plan's waits. After an instruction it advances its own counter.
// When a kernel fails, the stream sets its counter to stream_failed and aborts all communicators, so that the other
// streams end too; the first failure is returned.
#include <atomic>
#include <cstring>
#include <limits>

#include "emulated_kernels.h"
#include "lancet/backend/cpu/buffer.h"
#include "lancet/backend/cpu/parallel.h"
#include "plan_executor.h"
#include "step_failure.h"

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

class CpuExecutor final : public PlanExecutor {
 public:
  CpuExecutor(const ir::Plan& plan, TensorStore& store, const ExecutorOptions& options)
      : PlanExecutor(plan, options),
        arena_(options.arena.start ? Block() : Block::on_host(static_cast<std::size_t>(plan.arena_bytes))),
        inputs_(Buffer::zeroed(Addresses::input_bytes(plan.program))),
        addresses_(plan_, store, options.arena.start ? options.arena : arena_.memory(),
                   {inputs_.as<std::byte>(), inputs_.size()}) {}

  Status bind() {
    backend::cpu::set_threads(options_.threads);
    LANCET_ASSIGN(const auto scratch, runtime::workspace_bytes(plan_, ops::find_cpu_kernel, nullptr));
    for (std::size_t stream = 0; stream < ir::stream_count; ++stream)
      workspaces_[stream] = Buffer::raw(scratch[stream]);
    if (options_.emulated) emulated_.emplace(plan_, *options_.emulated);
    for (std::size_t i = 0; i < plan_.program.instructions.size(); ++i) {
      const ir::Instruction& instruction = plan_.program.instructions[i];
      if (ir::is_repeat(instruction)) {
        LANCET_ASSIGN(kernels_.emplace_back(), bind_repeat(std::int32_t(i)));
        continue;
      }
      LANCET_ASSIGN(const ops::KernelArgs args, arguments(instruction, instruction.stream));
      kernels_.push_back(emulated_ ? emulated_->bind(std::int32_t(i), args)
                                   : ops::find_cpu_kernel(instruction.op)->bind(args));
    }
    threads_.start(streams_, [this](std::size_t stream) { walk(stream); });
    return {};
  }

  Status run(Run which) override {
    begin_run(which);
    for (Progress& progress : progress_) progress.reset();
    errors_.clear();
    if (emulated_) emulated_->begin_run(which.body);
    start_clock();
    threads_.run_step();
    measured().ns = elapsed();
    return errors_.first();
  }

  Result<std::optional<NonFinite>> find_non_finite(Run which) override {
    begin_run(which);
    backend::cpu::set_threads(options_.threads);
    errors_.clear();
    return search_non_finite(plan_, addresses_, options_, *this, [this](std::int32_t i) { return left_out(i); });
  }

  StepTimes times() const override {
    StepTimes times = PlanExecutor::times();
    if (emulated_) times.late = emulated_->late_ns() * 1e-6;
    return times;
  }

  ops::TensorView input(std::string_view name) override { return addresses_.input(name); }
  ops::TensorView output(std::string_view name) const override { return addresses_.output(name); }
  std::int64_t workspace_bytes() const override {
    std::int64_t total = 0;
    for (const Buffer& workspace : workspaces_) total += static_cast<std::int64_t>(workspace.size());
    return total;
  }

 private:
  // stream: on which it runs.
  Result<ops::KernelArgs> arguments(const ir::Instruction& instruction, ir::Stream stream) const {
    ops::KernelArgs args = addresses_.arguments(instruction);
    LANCET_ASSIGN(args.group, find_group(options_, instruction));
    args.workspace = workspaces_[static_cast<std::size_t>(stream)].as<std::byte>();
    return args;
  }

  Result<ops::Kernel> bind_repeat(std::int32_t index) {
    const ir::Instruction& repeat = plan_.program.instructions[static_cast<std::size_t>(index)];
    std::vector<ops::Kernel> body;
    for (const ir::Instruction& part : repeat.body) {
      LANCET_ASSIGN(const ops::KernelArgs args, arguments(part, repeat.stream));
      body.push_back(emulated_ ? emulated_->bind_part(index, part, args) : ops::find_cpu_kernel(part.op)->bind(args));
    }
    ops::Kernel rounds = repeat_on_host(repeat, addresses_, std::move(body), options_.threads);
    const auto* count = addresses_.view(repeat.operands[ir::repeat_count]).as<std::int32_t>();
    return emulated_ ? emulated_->bind_repeat(index, count, std::move(rounds)) : std::move(rounds);
  }

  void walk(std::size_t stream) {
    backend::cpu::set_threads(stream == 0 ? options_.threads : 1);  // the other streams compute nothing but copies
    std::int32_t done = 0;
    for (const StreamStep& step : streams_[stream]) {
      for (const StreamWait& wait : step.waits)
        if (!progress_[wait.stream].wait(wait.target)) return progress_[stream].fail();
      Span& span = span_of(step.instruction);
      span.start = elapsed();
      if (left_out(step.instruction)) {
        if (emulated_) emulated_->leave_out(step.instruction);
      } else if (!run(step.instruction).ok()) {
        return progress_[stream].fail();
      }
      span.end = elapsed();
      progress_[stream].advance(++done);
    }
  }

  // SingleSteps. After a failure it wakes the other streams that block in a communicator, since this stream will not
  // reach what they wait for.
  Status run(std::int32_t instruction) override {
    Status status = call(kernels_[static_cast<std::size_t>(instruction)]);
    if (status.ok()) return status;
    status = error_at(plan_, instruction, status.error());
    errors_.add(stream_of(instruction), status.error());
    for (const comm::Groups& groups : options_.groups)
      for (const auto& [axes, group] : groups)
        if (group.comm) group.comm->abort(status.error().message);
    return status;
  }
  Status zero(const ops::TensorView& view) override {
    std::memset(view.data, 0, static_cast<std::size_t>(ir::bytes(view.type)));
    return {};
  }
  Result<ops::TensorView> host_view(const ops::TensorView& view) override { return view; }

  Block arena_;  // empty if options_.arena is shared
  Buffer inputs_;
  const Addresses addresses_;
  std::array<Buffer, ir::stream_count> workspaces_;
  std::optional<EmulatedKernels> emulated_;
  std::vector<ops::Kernel> kernels_;  // by instruction
  std::array<Progress, ir::stream_count> progress_;
  StreamErrors errors_;
  StreamThreads threads_;  // the last member: the threads use all others and must end first
};

}  // namespace

Result<std::unique_ptr<Executor>> Executor::create(const ir::Plan& plan, TensorStore& store,
                                                   const ExecutorOptions& options) {
  if (options.accelerator) return make_device_executor(plan, store, options);
  auto executor = std::make_unique<CpuExecutor>(plan, store, options);
  LANCET_TRY(executor->bind());
  return std::unique_ptr<Executor>(std::move(executor));
}

}  // namespace lancet::runtime
