// Streams as streams of an accelerator. A host thread a stream puts its work on the stream's queue, whole steps ahead: no
// thread waits for another, since flags join the streams.
//
// The first run goes one instruction at a time: what code loads, allocates and connects when it is first called may
// wait for all of the device, and would never come back while a queue waits for a flag. Then, with all streams idle,
// what lies between two flags of the compute stream is recorded, to be launched as a graph from the second run on.
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
#include "executors.h"
#include "host_mirror.h"
#include "lancet/base/log.h"
#include "step_times.h"
#include "stream_watch.h"
#include "device_stream.h"
#include "device_times.h"
#include "lancet/runtime/watched_stream.h"

namespace lancet::runtime {
namespace {

using backend::Flag;
using backend::Graph;

// Events cost the queue and the host a microsecond or so each.
constexpr std::int64_t timed_every = 8;
// Once a stream has failed, the others' streams have nothing to wait for.
constexpr std::int64_t drain_ns = 30'000'000'000;

class StreamExecutor final : public Executor, private SingleSteps {
 public:
  StreamExecutor(const ir::Plan& plan, const ExecutorOptions& options)
      : plan_(plan),
        options_(options),
        device_(options.accelerator->device()),
        streams_(streams_of(plan)),
        spans_(plan.program.instructions.size()) {}

  ~StreamExecutor() override {
    stopping_.store(true);
    epoch_.fetch_add(1);
    epoch_.notify_all();
  }

  Status bind(TensorStore& store) {
    LANCET_TRY(device_.bind_thread());
    LANCET_TRY(take_memory(store));
    for (std::size_t stream = 0; stream < ir::stream_count; ++stream) {
      LANCET_ASSIGN(auto queue, device_.make_stream(stream != 0));
      queues_[stream] = std::make_unique<WatchedStream>(std::move(queue), [this, stream] { return watch(stream); });
    }
    LANCET_TRY(bind_kernels());
    flag_plan_ = plan_flags(streams_, [&](std::int32_t instruction) { return kernel_of(instruction)->recordable; });
    // After the plan's own: inputs are there, and the ends of the other streams.
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
    walk_compute();
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

  Status take_memory(TensorStore& store) {
    if (!options_.arena.start) {
      LANCET_ASSIGN(arena_, Block::on_device(device_, static_cast<std::size_t>(plan_.arena_bytes)));
    }
    LANCET_TRY(mirror_.take_inputs(plan_.program, device_));
    addresses_.emplace(plan_, store, options_.arena.start ? options_.arena : arena_.memory(), mirror_.device_inputs());
    return mirror_.take_outputs(plan_.program, *addresses_, device_);
  }

  Status bind_kernels() {
    for (std::size_t stream = 1; stream < ir::stream_count; ++stream)
      if (comm::DeviceCommunicator* comm = options_.device_communicators[stream])
        LANCET_TRY(comm->reserve(static_cast<std::size_t>(most_in_a_call(static_cast<ir::Stream>(stream)))));
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

  // Bytes that a stream's instruction can send and receive.
  std::int64_t most_in_a_call(ir::Stream stream) const {
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
    for (const Stretch& stretch : flag_plan_.streams[stream]) {
      StreamWatch::Step& step = steps.emplace_back();
      step.instruction = streams_[stream][stretch.begin].instruction;
      for (std::size_t wait : stretch.waits) step.waits.push_back(flag(wait));
      step.done = flag(static_cast<std::size_t>(stretch.signal));
    }
    return steps;
  }

  // Several plans of one process say the same.
  static void log_once(const std::set<std::string>& remarks) {
    static std::mutex mutex;
    static std::set<std::string> said;
    const std::lock_guard lock(mutex);
    for (const std::string& remark : remarks)
      if (said.insert(remark).second) log::info("{}", remark);
  }

  Flag* flag(std::size_t number) { return flag_memory_.memory().as<Flag>() + number; }
  Flag* inputs_flag() { return flag(flag_plan_.flags); }
  Flag* end_flag(std::size_t stream) { return flag(flag_plan_.flags + 1 + stream); }

  // ---- a run

  // Errors that came up while queued calls of a transport ran.
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
    record_stretches();
    return queues_[0]->synchronize();
  }

  // All streams are idle.
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
      if (status.ok()) status = put_stream(stream);
      finish_stream(stream, status);
      if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
    }
  }

  Status put_stream(std::size_t stream) {
    watches_[stream].start();
    LANCET_TRY(queues_[stream]->wait(inputs_flag()));
    LANCET_TRY(put_stretches(stream));
    return queues_[stream]->signal(end_flag(stream));
  }

  void walk_compute() {
    Status status = device_.bind_thread();
    if (status.ok()) status = put_compute();
    finish_stream(0, status);
  }

  Status put_compute() {
    if (timing_) LANCET_TRY(times_->begin(*queues_[0]));
    LANCET_TRY(mirror_.copy_inputs(*queues_[0]));
    LANCET_TRY(queues_[0]->signal(inputs_flag()));
    LANCET_TRY(put_stretches(0));
    for (std::size_t stream = 1; stream < ir::stream_count; ++stream)
      if (!streams_[stream].empty()) LANCET_TRY(queues_[0]->wait(end_flag(stream)));
    LANCET_TRY(mirror_.copy_outputs(*queues_[0]));
    return queues_[0]->signal(end_flag(0));
  }

  // The stream's queue is empty afterwards, unless the device itself hangs.
  void finish_stream(std::size_t stream, const Status& put) {
    if (!put.ok()) fail(stream, put.error());
    const Status ended = drain(stream);
    if (ended.ok()) return;
    if (put.ok()) fail(stream, stream_error(stream, ended.error()));
    static_cast<void>(drain(stream));  // what it waited for has been released
  }

  // A step ends when the last stream has seen its end.
  Status drain(std::size_t stream) {
    const auto watching = [&]() -> Status {
      if (!failed_.load()) return watch(stream);
      if (now() - failed_at_.load() < drain_ns) return {};
      return internal_error("expected its queue to end once the step had failed, found it busy");
    };
    return wait_until_idle(*queues_[stream], watching, &usual_[stream], failed_.load() ? nullptr : end_flag(stream));
  }

  // Of kernels that wait on the host, and of a stream's end: whether it is worth while.
  Status watch(std::size_t stream) {
    if (failed_.load()) return communication_error("another stream failed");
    return stream == 0 ? Status() : watches_[stream].look();
  }

  Error stream_error(std::size_t stream, const Error& error) const {
    if (const auto& stuck = watches_[stream].stuck(); stuck && stuck->instruction >= 0)
      return error_at(plan_, stuck->instruction, stuck->error);
    return {error.code, fmt::format("stream {}: {}", ir::name(static_cast<ir::Stream>(stream)), error.message), false};
  }

  // What the other streams wait for will not come: they are released, and a communicator that blocks them is woken.
  void fail(std::size_t stream, const Error& error) {
    errors_[stream] = error;
    int none = -1;
    const bool first = failed_first_.compare_exchange_strong(none, static_cast<int>(stream));
    if (first) failed_at_.store(now());
    failed_.store(true);
    if (!first) return;
    for (comm::DeviceCommunicator* comm : options_.device_communicators)
      if (comm) comm->stop_pushes();
    write_flags(1);  // first: what ends a communicator may wait for all streams
    comm::abort_all(options_.device_communicators, error.message);
  }

  Status put_stretches(std::size_t stream) {
    backend::Stream& queue = *queues_[stream];
    // A queue whose earlier work has failed meanwhile takes no more, and says why.
    const auto named = [&](const Status& taken) {
      return taken.ok() ? taken : Status(stream_error(stream, taken.error()));
    };
    for (std::size_t i = 0; i < flag_plan_.streams[stream].size() && !failed_.load(); ++i) {
      const Stretch& stretch = flag_plan_.streams[stream][i];
      for (std::size_t wait : stretch.waits) LANCET_TRY(named(queue.wait(flag(wait))));
      if (timing_) LANCET_TRY(named(times_->begin_stretch(stream, i, queue)));
      LANCET_TRY(put_stretch(stream, i));
      if (timing_) LANCET_TRY(named(times_->end_stretch(stream, i, queue)));
      if (stretch.signal >= 0) LANCET_TRY(named(queue.signal(flag(static_cast<std::size_t>(stretch.signal)))));
    }
    return {};
  }

  // A graph of one instruction gains nothing.
  static bool records(const Stretch& stretch) { return stretch.recordable && stretch.end - stretch.begin > 1; }

  Status put_stretch(std::size_t stream, std::size_t number) {
    const Stretch& stretch = flag_plan_.streams[stream][number];
    Graph* graph = graphs_[stream][number].get();
    if (!graph || tracing_) return put_instructions(stream, stretch);
    device_.begin_range(names_[static_cast<std::size_t>(streams_[stream][stretch.begin].instruction)]);
    Status status = queues_[stream]->launch(*graph);
    device_.end_range();
    return status;
  }

  // What cannot be recorded is put on the queue anew each time.
  void record_stretches() {
    for (std::size_t i = 0; i < flag_plan_.streams[0].size(); ++i) {
      const Stretch& stretch = flag_plan_.streams[0][i];
      if (!records(stretch)) continue;
      auto graph = record_stretch(0, stretch);
      if (graph.ok())
        graphs_[0][i] = std::move(graph).value();
      else
        log::warn("stream compute: instructions {} to {} are not recorded: {}", streams_[0][stretch.begin].instruction,
                  streams_[0][stretch.end - 1].instruction, graph.error().message);
    }
  }

  // Ends the recording whatever happens.
  Result<std::unique_ptr<Graph>> record_stretch(std::size_t stream, const Stretch& stretch) {
    LANCET_TRY(queues_[stream]->begin_capture());
    const Status put = put_instructions(stream, stretch);
    auto graph = queues_[stream]->end_capture();
    if (!put.ok()) return put.error();
    return graph;
  }

  Status put_instructions(std::size_t stream, const Stretch& stretch) {
    for (std::size_t i = stretch.begin; i < stretch.end; ++i) {
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
      if (!status.ok())  // it may have waited for one before it
        status =
            watches_[stream].stuck() ? stream_error(stream, status.error()) : error_at(plan_, instruction, status.error());
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
    const auto stream = static_cast<std::size_t>(plan_.program.instructions[static_cast<std::size_t>(instruction)].stream);
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
  Block arena_;  // unless shared
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
  std::array<UsualWait, ir::stream_count> usual_;    // of the streams' ends
  std::array<StreamWatch, ir::stream_count> watches_;  // of the communication streams
  std::vector<Span> spans_;
  std::int64_t start_ = 0, step_ns_ = 0;
  std::atomic<std::uint32_t> epoch_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::jthread> threads_;  // last: they use all of the above and end first
};

}  // namespace

Result<std::unique_ptr<Executor>> make_stream_executor(const ir::Plan& plan, TensorStore& store,
                                                       const ExecutorOptions& options) {
  auto executor = std::make_unique<StreamExecutor>(plan, options);
  LANCET_TRY(executor->bind(store));
  return std::unique_ptr<Executor>(std::move(executor));
}

}  // namespace lancet::runtime
