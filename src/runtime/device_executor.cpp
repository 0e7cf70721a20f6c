// Executes each stream of a plan on a device stream of an accelerator. Here "stream" means a stream of the plan,
// "device stream" the queue of the device behind it (the variables `queue`, `queues_`). Each stream has a host thread,
// which enqueues all its work of a step at once: no host thread waits for another, since flags order the device
// streams.
//
// The first run executes one instruction at a time, because a kernel's first call may load code, allocate or connect
// and so wait for the whole device; it would never return while a device stream waits for a flag. Then, with all device
// streams idle, each section of the compute stream (device_stream.h) is recorded, to be launched as a graph from the
// second run on.
//
// Each host thread ends a step by waiting for its device stream (drain), and polls meanwhile: a communication stream's
// watch (stream_watch.h) reports transport errors and timeouts. The first error sets all flags, which releases the
// device streams, and aborts the communicators; then every thread drains its device stream and run() returns that first
// error.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "bound_plan.h"
#include "device_stream.h"
#include "device_times.h"
#include "executors.h"
#include "host_mirror.h"
#include "lancet/base/log.h"
#include "lancet/runtime/watched_stream.h"
#include "step_times.h"
#include "stream_watch.h"

namespace lancet::runtime {
namespace {

using backend::Flag;
using backend::Graph;

// Only every eighth run is timed, since an event costs the device stream and the host about a microsecond.
constexpr std::int64_t timed_every = 8;
// The longest that a device stream may stay busy after a failure, since all flags are set then.
constexpr std::int64_t drain_ns = 30'000'000'000;

class DeviceExecutor final : public Executor, private SingleSteps {
 public:
  DeviceExecutor(const ir::Plan& plan, const ExecutorOptions& options)
      : plan_(plan),
        options_(options),
        device_(options.accelerator->device()),
        streams_(streams_of(plan)),
        spans_(plan.program.instructions.size()) {}

  ~DeviceExecutor() override {
    stopping_.store(true);
    epoch_.fetch_add(1);
    epoch_.notify_all();
  }

  Status bind(TensorStore& store) {
    LANCET_TRY(device_.bind_thread());
    LANCET_TRY(allocate_memory(store));
    for (std::size_t stream = 0; stream < ir::stream_count; ++stream) {
      LANCET_ASSIGN(auto queue, device_.make_stream(stream != 0));
      queues_[stream] = std::make_unique<WatchedStream>(std::move(queue), [this, stream] { return watch(stream); });
    }
    LANCET_TRY(bind_kernels());
    flag_plan_ = plan_flags(streams_, [&](std::int32_t instruction) { return kernel_of(instruction)->recordable; });
    // The plan's flags, one for the copied inputs, and one for the end of each stream.
    LANCET_ASSIGN(flag_memory_, Block::page_locked(device_, (flag_plan_.flags + 1 + ir::stream_count) * sizeof(Flag)));
    for (std::size_t stream = 0; stream < ir::stream_count; ++stream) {
      graphs_[stream].resize(flag_plan_.streams[stream].size());
      if (stream > 0)
        watches_[stream] = StreamWatch(watched_steps(stream), options_.device_communicators[stream], options_.timeout);
    }
    LANCET_ASSIGN(times_, StreamTimes::make(plan_, streams_, flag_plan_, device_));
    for (std::size_t stream = 1; stream < ir::stream_count; ++stream)
      if (!streams_[stream].empty()) threads_.emplace_back([this, stream] { serve(stream); });
    return {};
  }

  Status run() override {
    if (runs_ == 0) return first_run();
    start_run();
    run_compute();
    for (int left = running_.load(std::memory_order_acquire); left > 0; left = running_.load(std::memory_order_acquire))
      running_.wait(left, std::memory_order_acquire);
    const std::int64_t took = now() - start_;
    if (const int stream = failed_first_.load(); stream >= 0) return *errors_[static_cast<std::size_t>(stream)];
    LANCET_TRY(check_streams());
    ++runs_;
    if (!timing_) return {};
    step_ns_ = took;
    return times_->read(tracing_, spans_);
  }

  Result<std::optional<NonFinite>> find_non_finite() override {
    LANCET_TRY(device_.bind_thread());
    start_run_flags();
    LANCET_TRY(mirror_.copy_inputs(*queues_[0]));
    LANCET_TRY(queues_[0]->synchronize());
    return search_non_finite(plan_, streams_, *addresses_, *this);
  }

  ops::TensorView input(std::string_view name) override {
    LANCET_CHECK(plan_.program[plan_.program.root(plan_.program.find(name))].kind == ir::TensorKind::input,
                 "@{} is no input", name);
    return mirror_.input(addresses_->input(name));
  }
  ops::TensorView output(std::string_view name) const override { return mirror_.output(name); }
  bool has_output(std::string_view name) const override { return plan_.program.output(name).valid(); }
  const ir::Plan& plan() const override { return plan_; }
  std::span<const Span> spans() const override { return spans_; }
  StepTimes times() const override { return stream_times(plan_.program, spans_, step_ns_); }
  void time_next_run() override { trace_next_ = true; }
  std::int64_t workspace_bytes() const override {
    std::int64_t total = 0;
    for (const Block& workspace : workspaces_) total += static_cast<std::int64_t>(workspace.bytes());
    return total;
  }

 private:
  static std::int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  // ---- binding

  const ops::DeviceKernel* kernel_of(std::int32_t instruction) const {
    return options_.accelerator->find_kernel(plan_.program.instructions[static_cast<std::size_t>(instruction)].op);
  }

  Status allocate_memory(TensorStore& store) {
    if (!options_.arena.start) {
      LANCET_ASSIGN(arena_, Block::on_device(device_, static_cast<std::size_t>(plan_.arena_bytes)));
    }
    LANCET_TRY(mirror_.allocate_inputs(plan_.program, device_));
    addresses_.emplace(plan_, store, options_.arena.start ? options_.arena : arena_.memory(), mirror_.device_inputs());
    return mirror_.allocate_outputs(plan_.program, *addresses_, device_);
  }

  Status bind_kernels() {
    for (std::size_t stream = 1; stream < ir::stream_count; ++stream)
      if (comm::DeviceCommunicator* comm = options_.device_communicators[stream])
        LANCET_TRY(comm->reserve(static_cast<std::size_t>(most_bytes_per_call(static_cast<ir::Stream>(stream)))));
    LANCET_ASSIGN(const auto scratch,
                  runtime::workspace_bytes(
                      plan_, *addresses_, [&](std::string_view op) { return options_.accelerator->find_kernel(op); },
                      "on " + device_.name()));
    for (std::size_t stream = 0; stream < ir::stream_count; ++stream) {
      LANCET_ASSIGN(workspaces_[stream], Block::on_device(device_, scratch[stream]));
    }
    ops::BindNotes notes;
    std::set<std::string> remarks;
    for (const ir::Instruction& instruction : plan_.program.instructions) {
      const auto stream = static_cast<std::size_t>(instruction.stream);
      ops::KernelArgs args = addresses_->arguments(instruction);
      args.workspace = workspaces_[stream].start();
      args.device = &device_;
      args.stream = queues_[stream].get();
      args.device_comm = options_.device_communicators[stream];
      args.notes = &notes;
      args.remarks = &remarks;
      kernels_.push_back(options_.accelerator->find_kernel(instruction.op)->bind(args));
      names_.push_back(fmt::format("{} {}", instruction.op, instruction.label));
    }
    log_once(remarks);
    return {};
  }

  // The most bytes that one instruction of the stream sends and receives.
  std::int64_t most_bytes_per_call(ir::Stream stream) const {
    std::int64_t most = 0;
    for (const ir::Instruction& instruction : plan_.program.instructions) {
      if (instruction.stream != stream) continue;
      std::int64_t bytes = 0;
      for (const ir::TensorId operand : instruction.operands) bytes += ir::bytes(plan_.program.type(operand));
      for (const ir::TensorId result : instruction.results) bytes += ir::bytes(plan_.program.type(result));
      most = std::max(most, bytes);
    }
    return most;
  }

  std::vector<StreamWatch::Step> watched_steps(std::size_t stream) {
    std::vector<StreamWatch::Step> steps;
    for (const Section& section : flag_plan_.streams[stream]) {
      StreamWatch::Step& step = steps.emplace_back();
      step.instruction = streams_[stream][section.begin].instruction;
      for (std::size_t wait : section.waits) step.waits.push_back(flag(wait));
      step.done = flag(static_cast<std::size_t>(section.signal));
    }
    return steps;
  }

  // Logs each remark once per process, since several plans have the same remarks.
  static void log_once(const std::set<std::string>& remarks) {
    static std::mutex mutex;
    static std::set<std::string> logged;
    const std::lock_guard lock(mutex);
    for (const std::string& remark : remarks)
      if (logged.insert(remark).second) log::info("{}", remark);
  }

  Flag* flag(std::size_t number) { return flag_memory_.memory().as<Flag>() + number; }
  Flag* inputs_flag() { return flag(flag_plan_.flags); }
  Flag* end_flag(std::size_t stream) { return flag(flag_plan_.flags + 1 + stream); }

  // ---- a run

  // Returns an error of a transport's calls that came up after they were enqueued.
  Status check_streams() {
    for (std::size_t stream = 1; stream < ir::stream_count; ++stream)
      if (comm::DeviceCommunicator* comm = options_.device_communicators[stream])
        if (const Status status = comm->check(); !status.ok())
          return Error{status.error().code,
                       fmt::format("stream {}: {}", ir::name(static_cast<ir::Stream>(stream)), status.error().message),
                       false};
    return {};
  }

  Status first_run() {
    LANCET_TRY(device_.bind_thread());
    start_run_flags();
    trace_next_ = false;
    start_ = now();
    LANCET_TRY(mirror_.copy_inputs(*queues_[0]));
    LANCET_TRY(queues_[0]->synchronize());
    LANCET_TRY(walk_alone(streams_, [&](const StreamStep& step) -> Status {
      Span& span = spans_[static_cast<std::size_t>(step.instruction)];
      span.start = now() - start_;
      LANCET_TRY(run(step.instruction));
      span.end = now() - start_;
      return {};
    }));
    LANCET_TRY(mirror_.copy_outputs(*queues_[0]));
    LANCET_TRY(queues_[0]->synchronize());
    LANCET_TRY(check_streams());
    step_ns_ = now() - start_;
    ++runs_;
    record_sections();
    return queues_[0]->synchronize();
  }

  // Requires that all device streams are idle.
  void start_run_flags() {
    write_flags(0);
    for (auto& error : errors_) error.reset();
    failed_first_.store(-1, std::memory_order_relaxed);
    failed_.store(false, std::memory_order_relaxed);
  }
  void start_run() {
    start_run_flags();
    tracing_ = std::exchange(trace_next_, false);
    timing_ = tracing_ || runs_ == 1 || runs_ % timed_every == 0;
    start_ = now();
    running_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
  }

  void write_flags(Flag value) {
    for (std::size_t i = 0; i < flag_plan_.flags + 1 + ir::stream_count; ++i)
      std::atomic_ref(*flag(i)).store(value, std::memory_order_release);
  }

  void serve(std::size_t stream) {
    const Status bound = device_.bind_thread();
    for (std::uint32_t seen = 0;;) {
      epoch_.wait(seen, std::memory_order_acquire);
      seen = epoch_.load(std::memory_order_acquire);
      if (stopping_.load()) return;
      Status status = bound;
      if (status.ok()) status = enqueue_stream(stream);
      finish_stream(stream, status);
      if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
    }
  }

  Status enqueue_stream(std::size_t stream) {
    watches_[stream].start();
    LANCET_TRY(queues_[stream]->wait(inputs_flag()));
    LANCET_TRY(enqueue_sections(stream));
    return queues_[stream]->signal(end_flag(stream));
  }

  void run_compute() {
    Status status = device_.bind_thread();
    if (status.ok()) status = enqueue_compute();
    finish_stream(0, status);
  }

  Status enqueue_compute() {
    if (timing_) LANCET_TRY(times_->begin(*queues_[0]));
    LANCET_TRY(mirror_.copy_inputs(*queues_[0]));
    LANCET_TRY(queues_[0]->signal(inputs_flag()));
    LANCET_TRY(enqueue_sections(0));
    for (std::size_t stream = 1; stream < ir::stream_count; ++stream)
      if (!streams_[stream].empty()) LANCET_TRY(queues_[0]->wait(end_flag(stream)));
    LANCET_TRY(mirror_.copy_outputs(*queues_[0]));
    return queues_[0]->signal(end_flag(0));
  }

  // Waits for the end of the stream. Its device stream is empty afterwards, unless the device itself hangs.
  void finish_stream(std::size_t stream, const Status& enqueued) {
    if (!enqueued.ok()) fail(stream, enqueued.error());
    const Status ended = drain(stream);
    if (ended.ok()) return;
    if (enqueued.ok()) fail(stream, stream_error(stream, ended.error()));
    static_cast<void>(drain(stream));  // fail() has released the flags that it waited for
  }

  // Waits until the stream's device stream is empty; after a failure, for at most drain_ns.
  Status drain(std::size_t stream) {
    const auto watching = [&]() -> Status {
      if (!failed_.load()) return watch(stream);
      if (now() - failed_at_.load() < drain_ns) return {};
      return internal_error(
          fmt::format("the device stream is still busy {} s after the step failed", drain_ns / 1'000'000'000));
    };
    return wait_until_idle(*queues_[stream], watching, &usual_[stream], failed_.load() ? nullptr : end_flag(stream));
  }

  // The health check of a wait for the stream's device stream: an error if the wait cannot end well.
  Status watch(std::size_t stream) {
    if (failed_.load()) return communication_error("another stream failed");
    return stream == 0 ? Status() : watches_[stream].look();
  }

  Error stream_error(std::size_t stream, const Error& error) const {
    if (const auto& stuck = watches_[stream].stuck(); stuck && stuck->instruction >= 0)
      return error_at(plan_, stuck->instruction, stuck->error);
    return {error.code, fmt::format("stream {}: {}", ir::name(static_cast<ir::Stream>(stream)), error.message), false};
  }

  // Records a stream's error. The first one releases the device streams that wait for a flag and aborts the
  // communicators.
  void fail(std::size_t stream, const Error& error) {
    errors_[stream] = error;
    int none = -1;
    const bool first = failed_first_.compare_exchange_strong(none, static_cast<int>(stream));
    if (first) failed_at_.store(now());
    failed_.store(true);
    if (!first) return;
    for (comm::DeviceCommunicator* comm : options_.device_communicators)
      if (comm) comm->stop_pushes();
    write_flags(1);  // before the abort, which may wait for all device streams
    comm::abort_all(options_.device_communicators, error.message);
  }

  Status enqueue_sections(std::size_t stream) {
    backend::Stream& queue = *queues_[stream];
    // A device stream refuses new work, with the cause, once earlier work on it has failed.
    const auto named = [&](const Status& status) {
      return status.ok() ? status : Status(stream_error(stream, status.error()));
    };
    for (std::size_t i = 0; i < flag_plan_.streams[stream].size() && !failed_.load(); ++i) {
      const Section& section = flag_plan_.streams[stream][i];
      for (std::size_t wait : section.waits) LANCET_TRY(named(queue.wait(flag(wait))));
      if (timing_) LANCET_TRY(named(times_->begin_section(stream, i, queue)));
      LANCET_TRY(enqueue_section(stream, i));
      if (timing_) LANCET_TRY(named(times_->end_section(stream, i, queue)));
      if (section.signal >= 0) LANCET_TRY(named(queue.signal(flag(static_cast<std::size_t>(section.signal)))));
    }
    return {};
  }

  // A graph of a single instruction saves no time.
  static bool records(const Section& section) { return section.recordable && section.end - section.begin > 1; }

  Status enqueue_section(std::size_t stream, std::size_t number) {
    const Section& section = flag_plan_.streams[stream][number];
    Graph* graph = graphs_[stream][number].get();
    if (!graph || tracing_) return enqueue_instructions(stream, section);
    device_.begin_range(names_[static_cast<std::size_t>(streams_[stream][section.begin].instruction)]);
    Status status = queues_[stream]->launch(*graph);
    device_.end_range();
    return status;
  }

  // A section that cannot be recorded is enqueued instruction by instruction in each run.
  void record_sections() {
    for (std::size_t i = 0; i < flag_plan_.streams[0].size(); ++i) {
      const Section& section = flag_plan_.streams[0][i];
      if (!records(section)) continue;
      auto graph = record_section(0, section);
      if (graph.ok())
        graphs_[0][i] = std::move(graph).value();
      else
        log::warn("stream compute: instructions {} to {} are not recorded: {}", streams_[0][section.begin].instruction,
                  streams_[0][section.end - 1].instruction, graph.error().message);
    }
  }

  // Ends the recording even if an instruction fails.
  Result<std::unique_ptr<Graph>> record_section(std::size_t stream, const Section& section) {
    LANCET_TRY(queues_[stream]->begin_capture());
    const Status enqueued = enqueue_instructions(stream, section);
    auto graph = queues_[stream]->end_capture();
    if (!enqueued.ok()) return enqueued.error();
    return graph;
  }

  Status enqueue_instructions(std::size_t stream, const Section& section) {
    for (std::size_t i = section.begin; i < section.end; ++i) {
      const std::int32_t instruction = streams_[stream][i].instruction;
      if (tracing_) LANCET_TRY(times_->begin_instruction(instruction, *queues_[stream]));
      LANCET_TRY(call(instruction));
      if (tracing_) LANCET_TRY(times_->end_instruction(instruction, *queues_[stream]));
    }
    return {};
  }

  Status call(std::int32_t instruction) {
    const auto at = static_cast<std::size_t>(instruction);
    device_.begin_range(names_[at]);
    Status status;
    try {
      status = kernels_[at]();
      const auto stream = static_cast<std::size_t>(plan_.program.instructions[at].stream);
      if (!status.ok())  // the kernel may have waited for a stuck instruction before it
        status = watches_[stream].stuck() ? stream_error(stream, status.error())
                                          : error_at(plan_, instruction, status.error());
    } catch (const std::exception& error) {
      status = error_at(plan_, instruction, internal_error(error.what()));
    }
    device_.end_range();
    return status;
  }

  // ---- SingleSteps

  Status zero(const ops::TensorView& view) override {
    LANCET_TRY(queues_[0]->zero(view.data, static_cast<std::size_t>(ir::bytes(view.type))));
    return queues_[0]->synchronize();
  }
  Status run(std::int32_t instruction) override {
    const auto stream =
        static_cast<std::size_t>(plan_.program.instructions[static_cast<std::size_t>(instruction)].stream);
    watches_[stream].start_alone(instruction);
    Status status = call(instruction);
    if (status.ok())
      if (const Status ended = queues_[stream]->synchronize(); !ended.ok())
        status = error_at(plan_, instruction, ended.error());
    if (status.ok()) return {};
    fail(stream, status.error());
    static_cast<void>(drain(stream));
    return status;
  }
  Result<ops::TensorView> host_view(const ops::TensorView& view) override {
    const auto bytes = static_cast<std::size_t>(ir::bytes(view.type));
    if (search_memory_.bytes() < bytes) {
      LANCET_ASSIGN(search_memory_, Block::page_locked(device_, bytes));
    }
    LANCET_TRY(queues_[0]->copy(search_memory_.start(), view.data, bytes));
    LANCET_TRY(queues_[0]->synchronize());
    return ops::TensorView{search_memory_.start(), view.type};
  }

  const ir::Plan plan_;
  const ExecutorOptions options_;
  backend::Device& device_;
  const Streams streams_;
  Block arena_;  // empty if options_.arena is shared
  Block flag_memory_, search_memory_;
  HostMirror mirror_;
  std::array<Block, ir::stream_count> workspaces_;
  std::optional<Addresses> addresses_;
  std::array<std::unique_ptr<backend::Stream>, ir::stream_count> queues_;
  FlagPlan flag_plan_;
  std::vector<ops::Kernel> kernels_;  // by instruction
  std::vector<std::string> names_;
  std::array<std::vector<std::unique_ptr<Graph>>, ir::stream_count> graphs_;
  std::optional<StreamTimes> times_;
  bool trace_next_ = false, tracing_ = false, timing_ = false;
  std::int64_t runs_ = 0;
  std::array<std::optional<Error>, ir::stream_count> errors_;
  std::atomic<int> failed_first_{-1};
  std::atomic<bool> failed_{false};
  std::atomic<std::int64_t> failed_at_{0};
  std::array<UsualWait, ir::stream_count> usual_;      // waits for the streams' ends
  std::array<StreamWatch, ir::stream_count> watches_;  // used by the communication streams
  std::vector<Span> spans_;
  std::int64_t start_ = 0, step_ns_ = 0;
  std::atomic<std::uint32_t> epoch_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::jthread> threads_;  // the last member: the threads use all others and must end first
};

}  // namespace

Result<std::unique_ptr<Executor>> make_device_executor(const ir::Plan& plan, TensorStore& store,
                                                       const ExecutorOptions& options) {
  auto executor = std::make_unique<DeviceExecutor>(plan, options);
  LANCET_TRY(executor->bind(store));
  return std::unique_ptr<Executor>(std::move(executor));
}

}  // namespace lancet::runtime
