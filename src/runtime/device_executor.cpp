// Executes each stream of a plan on a device stream of an accelerator. Here "stream" means a stream of the plan,
// "device stream" the queue of the device behind it (the variables `queue`, `queues_`). Each stream has a host thread,
// which enqueues its work of a step without waiting for another thread, since flags order the device streams; Backlog
// says how far it may be ahead of its device stream. All executors of a device share its device streams.
//
// The runs up to the one after which every instruction has run execute one instruction at a time, because a kernel's
// first call may load a library's code, allocate or connect and so wait for the whole device; it would never return
// while a device stream waits for a flag. Pipeline stages do so in an order in which they meet
// (ExecutorOptions::order); in the order of its plan, a stage would wait for a message to leave before it receives what
// the other one needs sent first. What an instruction does not do in its first call has to be safe in a later one: the
// module's own kernels are loaded before, and all_to_all_counts has sent to all ranks of its group. Then, with all
// device streams idle, each section of the compute stream (device_stream.h) is recorded, to be launched as a graph from
// the next run on. In a run that leaves instructions out, sections that have some are not launched as graphs. Each host
// thread ends a step by waiting for its device stream; step_failure.h says how errors end it.
#include <algorithm>
#include <numeric>
#include <optional>

#include "device_kernels.h"
#include "device_times.h"
#include "lancet/base/log.h"
#include "lancet/runtime/watched_stream.h"
#include "plan_executor.h"
#include "step_failure.h"

namespace lancet::runtime {
namespace {

// Recorded sections of a stream, each of which is launched as one graph.
class SectionGraphs {
 public:
  // Records the sections of a stream on its idle device stream, `queue`. enqueue(section) puts the section's
  // instructions there. A section that cannot be recorded is logged and has no graph.
  template <class Enqueue>
  void record(const std::vector<Section>& sections, const std::vector<StreamStep>& steps, backend::Stream& queue,
              const Enqueue& enqueue) {
    graphs_.resize(sections.size());
    for (std::size_t i = 0; i < sections.size(); ++i) {
      const Section& section = sections[i];
      if (!section.recordable || section.end - section.begin == 1) continue;  // a graph of one instruction is no gain
      auto graph = recorded(queue, [&] { return enqueue(section); });
      if (graph.ok())
        graphs_[i] = std::move(graph).value();
      else
        log::warn("stream compute: instructions {} to {} are not recorded: {}", steps[section.begin].instruction,
                  steps[section.end - 1].instruction, graph.error().message);
    }
  }
  // Null if the section has none.
  backend::Graph* find(std::size_t section) const { return graphs_[section].get(); }

 private:
  // Ends the recording even if an instruction fails.
  template <class Enqueue>
  static Result<std::unique_ptr<backend::Graph>> recorded(backend::Stream& queue, const Enqueue& enqueue) {
    LANCET_TRY(queue.begin_capture());
    const Status enqueued = enqueue();
    auto graph = queue.end_capture();
    if (!enqueued.ok()) return enqueued.error();
    return graph;
  }

  std::vector<std::unique_ptr<backend::Graph>> graphs_;  // by section
};

// A program's inputs and outputs in page-locked memory, which the host writes and reads.
class HostMirror {
 public:
  // Allocates the inputs' memory on the host and the device; call it before the plan's addresses are known.
  Status allocate_inputs(const ir::Program& program, backend::Device& device) {
    const std::size_t bytes = Addresses::input_bytes(program);
    LANCET_ASSIGN(input_memory_, Block::on_device(device, bytes));
    LANCET_ASSIGN(inputs_, Block::page_locked(device, bytes));
    return {};
  }
  Memory device_inputs() const { return input_memory_.memory(); }
  Status allocate_outputs(const ir::Program& program, const Addresses& addresses, backend::Device& device) {
    std::size_t bytes = 0;
    auto aligned = [](std::int64_t size) { return (static_cast<std::size_t>(size) + 63) / 64 * 64; };
    for (const ir::Output& output : program.outputs) bytes += aligned(ir::bytes(program.type(output.tensor)));
    LANCET_ASSIGN(output_memory_, Block::page_locked(device, bytes));
    std::byte* next = output_memory_.start();
    for (const ir::Output& output : program.outputs) {
      const ops::TensorView view = addresses.view(output.tensor);
      outputs_.push_back({output.name, view, {next, view.type}});
      next += aligned(ir::bytes(view.type));
    }
    return {};
  }

  // The mirror of an input. device_view: its view on the device.
  ops::TensorView input(ops::TensorView device_view) const {
    device_view.data = inputs_.start() + (static_cast<std::byte*>(device_view.data) - input_memory_.start());
    return device_view;
  }
  // Throws InternalError if the plan has no such output.
  ops::TensorView output(std::string_view name) const {
    const auto at = std::find_if(outputs_.begin(), outputs_.end(), [&](const Output& o) { return o.name == name; });
    LANCET_CHECK(at != outputs_.end(), "the plan has no output {}", name);
    return at->host;
  }

  Status copy_inputs(backend::Stream& stream) const {
    return stream.copy(input_memory_.start(), inputs_.start(), input_memory_.bytes());
  }
  Status copy_outputs(backend::Stream& stream) const {
    for (const Output& output : outputs_)
      if (output.device.data)
        LANCET_TRY(
            stream.copy(output.host.data, output.device.data, static_cast<std::size_t>(ir::bytes(output.device.type))));
    return {};
  }

 private:
  struct Output {
    std::string name;
    ops::TensorView device, host;
  };

  Block input_memory_, inputs_, output_memory_;
  std::vector<Output> outputs_;
};

class DeviceExecutor final : public PlanExecutor {
 public:
  DeviceExecutor(const ir::Plan& plan, const ExecutorOptions& options)
      : PlanExecutor(plan, options), device_(options.accelerator->device()) {}

  Status bind(TensorStore& store) {
    LANCET_TRY(device_.bind_thread());
    LANCET_TRY(allocate_memory(store));
    for (std::size_t stream = 0; stream < ir::stream_count; ++stream) {
      if (stream > 0 && streams_[stream].empty()) continue;
      LANCET_ASSIGN(backend::Stream* const queue, device_.shared_stream(stream));
      queues_[stream] = std::make_unique<WatchedStream>(*queue, [this, stream] { return failure_.watch(stream); });
    }
    const auto recordable = [&](std::int32_t instruction) {
      const ops::DeviceKernel* kernel = options_.accelerator->find_kernel(at(instruction).op);
      return kernel && kernel->recordable;  // bind() names the op that has no kernel
    };
    flag_plan_ = plan_flags(streams_, recordable);
    LANCET_TRY(kernels_.bind(plan_, *addresses_, options_, queues_,
                             runs_of(plan_.program, streams_, flag_plan_, *options_.accelerator), workspaces_));
    LANCET_TRY(flags_.allocate(flag_plan_.flags, device_));
    for (std::size_t stream = 0; stream < ir::stream_count; ++stream)
      if (queues_[stream]) backlogs_[stream] = Backlog(*queues_[stream], flags_.marks(stream));
    failure_.watch_steps(streams_, flag_plan_);
    find_kinds();
    LANCET_ASSIGN(times_, StreamTimes::make(plan_, streams_, flag_plan_, device_));
    threads_.start(streams_, [this](std::size_t stream) { run_stream(stream); });
    return {};
  }

  Status run(Run which) override {
    begin_run(which);
    times_->begin_run(runs());
    failure_.start_step();
    start_clock();
    if (!recorded_) return first_run();
    threads_.run_step();
    const std::int64_t took = elapsed();
    LANCET_TRY(failure_.first());
    LANCET_TRY(failure_.check_transports());
    ++runs();
    if (!times_->timed()) return {};
    measured().ns = took;
    return times_->read(measured().spans);
  }

  Result<std::optional<NonFinite>> find_non_finite(Run which) override {
    begin_run(which);
    LANCET_TRY(device_.bind_thread());
    failure_.start_step();
    LANCET_TRY(mirror_.copy_inputs(*queues_[0]));
    LANCET_TRY(queues_[0]->synchronize());
    return search_non_finite(plan_, *addresses_, options_, *this, [this](std::int32_t i) { return left_out(i); });
  }

  ops::TensorView input(std::string_view name) override { return mirror_.input(addresses_->input(name)); }
  ops::TensorView output(std::string_view name) const override { return mirror_.output(name); }
  void time_next_run() override { times_->request(); }
  std::int64_t workspace_bytes() const override {
    std::int64_t total = 0;
    for (const Block& workspace : workspaces_) total += static_cast<std::int64_t>(workspace.bytes());
    return total;
  }

 private:
  const ir::Instruction& at(std::int32_t instruction) const {
    return plan_.program.instructions[static_cast<std::size_t>(instruction)];
  }

  Status allocate_memory(TensorStore& store) {
    if (!options_.arena.start) {
      LANCET_ASSIGN(arena_, Block::on_device(device_, static_cast<std::size_t>(plan_.arena_bytes)));
    }
    LANCET_TRY(mirror_.allocate_inputs(plan_.program, device_));
    addresses_.emplace(plan_, store, options_.arena.start ? options_.arena : arena_.memory(), mirror_.device_inputs());
    return mirror_.allocate_outputs(plan_.program, *addresses_, device_);
  }

  // A section with an instruction that a run leaves out has no graph in that run.
  void find_kinds() {
    for (const Section& section : flag_plan_.streams[0]) {
      Run& needed = section_needs_.emplace_back(Run{false, false, false});
      for (std::size_t i = section.begin; i < section.end; ++i) {
        const std::int32_t instruction = streams_[0][i].instruction;
        const bool before = ir::of_step_before(at(instruction));
        const bool closes = closes_step_[static_cast<std::size_t>(instruction)];
        (before ? needed.before : closes ? needed.closing : needed.body) = true;
      }
    }
  }
  bool is_whole(const Run& needed) const {
    return (which_.before || !needed.before) && (which_.body || !needed.body) && (which_.closing || !needed.closing);
  }

  std::int64_t& runs() { return runs_[which_.kind()]; }

  Status first_run() {
    LANCET_TRY(device_.bind_thread());
    LANCET_TRY(mirror_.copy_inputs(*queues_[0]));
    LANCET_TRY(queues_[0]->synchronize());
    LANCET_ASSIGN(const std::vector<std::int32_t> order, order_of_first_run());
    for (const std::int32_t i : order) {
      Span& span = span_of(i);
      span.start = elapsed();
      if (!left_out(i)) {
        LANCET_TRY(run(i));
        has_run_[static_cast<std::size_t>(i)] = true;
      }
      span.end = elapsed();
    }
    LANCET_TRY(mirror_.copy_outputs(*queues_[0]));
    LANCET_TRY(queues_[0]->synchronize());
    LANCET_TRY(failure_.check_transports());
    measured().ns = elapsed();
    runs() = 1;
    if (std::ranges::count(has_run_, false) > 0) return {};
    recorded_ = true;
    graphs_.record(flag_plan_.streams[0], streams_[0], *queues_[0], [&](const Section& section) -> Status {
      for (std::size_t i = section.begin; i < section.end; ++i) LANCET_TRY(call(streams_[0][i].instruction));
      return {};
    });
    return queues_[0]->synchronize();
  }

  // In this order no kernel waits for a later one, of whatever rank.
  Result<std::vector<std::int32_t>> order_of_first_run() const {
    std::vector<std::int32_t> order(closes_step_.size());
    std::iota(order.begin(), order.end(), 0);
    if (!options_.order) return order;
    LANCET_ASSIGN(const std::vector<ir::PlacedInstruction> placed, options_.order());
    std::ranges::transform(placed, order.begin(), [](const ir::PlacedInstruction& at) { return at.instruction.value; });
    return order;
  }

  void run_stream(std::size_t stream) {
    Status status = device_.bind_thread();
    backlogs_[stream].start();
    failure_.start_stream(stream);
    if (status.ok()) status = stream == 0 ? enqueue_compute() : enqueue_communication(stream);
    failure_.finish(stream, status);
  }

  Status enqueue_communication(std::size_t stream) {
    LANCET_TRY(queues_[stream]->wait(flags_.inputs()));
    LANCET_TRY(enqueue_sections(stream));
    return queues_[stream]->signal(flags_.end(stream));
  }

  Status enqueue_compute() {
    LANCET_TRY(times_->begin(*queues_[0]));
    LANCET_TRY(mirror_.copy_inputs(*queues_[0]));
    LANCET_TRY(queues_[0]->signal(flags_.inputs()));
    LANCET_TRY(enqueue_sections(0));
    for (std::size_t stream = 1; stream < ir::stream_count; ++stream)
      if (!streams_[stream].empty()) LANCET_TRY(queues_[0]->wait(flags_.end(stream)));
    LANCET_TRY(mirror_.copy_outputs(*queues_[0]));
    return queues_[0]->signal(flags_.end(0));
  }

  Status enqueue_sections(std::size_t stream) {
    backend::Stream& queue = *queues_[stream];
    const auto named = [&](const Status& status) { return at_stream(stream, status); };
    for (std::size_t i = 0; i < flag_plan_.streams[stream].size() && !failure_.failed(); ++i) {
      const Section& section = flag_plan_.streams[stream][i];
      for (std::size_t wait : section.waits) LANCET_TRY(named(queue.wait(flags_.planned(wait))));
      LANCET_TRY(named(times_->begin_section(stream, i, queue)));
      LANCET_TRY(enqueue_section(stream, i));
      LANCET_TRY(named(times_->end_section(stream, i, queue)));
      if (section.signal >= 0)
        LANCET_TRY(named(queue.signal(flags_.planned(static_cast<std::size_t>(section.signal)))));
    }
    return {};
  }

  Status enqueue_section(std::size_t stream, std::size_t number) {
    const Section& section = flag_plan_.streams[stream][number];
    const bool has_graph = stream == 0 && !times_->each() && is_whole(section_needs_[number]);
    backend::Graph* graph = has_graph ? graphs_.find(number) : nullptr;
    if (!graph) return enqueue_instructions(stream, section);
    LANCET_TRY(at_stream(stream, backlogs_[stream].limit()));
    return kernels_.in_range(streams_[stream][section.begin].instruction,
                             [&] { return queues_[stream]->launch(*graph); });
  }

  Status enqueue_instructions(std::size_t stream, const Section& section) {
    for (std::size_t i = section.begin; i < section.end; ++i) {
      const std::int32_t instruction = streams_[stream][i].instruction;
      LANCET_TRY(at_stream(stream, backlogs_[stream].limit()));
      LANCET_TRY(times_->begin_instruction(instruction, *queues_[stream]));
      if (!left_out(instruction)) LANCET_TRY(call(instruction));
      LANCET_TRY(times_->end_instruction(instruction, *queues_[stream]));
    }
    return {};
  }

  // A device stream refuses new work, with the cause, once earlier work on it has failed.
  Status at_stream(std::size_t stream, const Status& status) {
    return status.ok() ? status : Status(failure_.of_stream(stream, status.error()));
  }

  Status call(std::int32_t instruction) {
    const Status status = kernels_.call(instruction);
    return status.ok() ? status : Status(failure_.of_instruction(stream_of(instruction), instruction, status.error()));
  }

  // SingleSteps.
  Status zero(const ops::TensorView& view) override {
    LANCET_TRY(queues_[0]->zero(view.data, static_cast<std::size_t>(ir::bytes(view.type))));
    return queues_[0]->synchronize();
  }
  Status run(std::int32_t instruction) override {
    const std::size_t stream = stream_of(instruction);
    failure_.start_alone(stream, instruction);
    Status status = call(instruction);
    if (status.ok())
      if (const Status ended = queues_[stream]->synchronize(); !ended.ok())
        status = error_at(plan_, instruction, ended.error());
    if (!status.ok()) {
      failure_.fail(stream, status.error());
      static_cast<void>(failure_.drain(stream));
    }
    failure_.end_alone(stream);
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

  backend::Device& device_;
  Block arena_;  // empty if options_.arena is shared
  Block search_memory_;
  StepFlags flags_;
  Workspaces workspaces_;
  HostMirror mirror_;
  std::optional<Addresses> addresses_;
  DeviceQueues queues_;
  std::array<Backlog, ir::stream_count> backlogs_;
  FlagPlan flag_plan_;
  StepFailure failure_{plan_, options_, queues_, flags_};
  DeviceKernels kernels_;
  SectionGraphs graphs_;            // of the compute stream
  std::vector<Run> section_needs_;  // of each of its sections: what a run must execute to execute all of it
  std::optional<StreamTimes> times_;
  std::array<std::int64_t, Run::kinds> runs_{};  // by Run::kind(); those one instruction at a time count as one
  std::vector<bool> has_run_ = std::vector<bool>(closes_step_.size());  // by instruction
  bool recorded_ = false;  // every kernel has run, and the sections are recorded
  StreamThreads threads_;  // the last member: the threads use all others and must end first
};

}  // namespace

Result<std::unique_ptr<Executor>> make_device_executor(const ir::Plan& plan, TensorStore& store,
                                                       const ExecutorOptions& options) {
  auto executor = std::make_unique<DeviceExecutor>(plan, options);
  LANCET_TRY(executor->bind(store));
  return std::unique_ptr<Executor>(std::move(executor));
}

}  // namespace lancet::runtime
