// A tensor is known if the host has its numbers: inputs of integers, routers' scores, which are drawn, the biases that
// balance the load (ops::OpDef::counted), which stay zero, and the results of an instruction whose operands are all
// known (choices of experts, gates, counts, statistics of the load). A part of a tensor is known if the whole is, and
// the other way round. An all-reduce is computed if any of its vectors is known, since it sums each by itself, or if it
// sums the ranks' shares of an output, which may be known to some of them alone. What arrives from another pipeline
// stage is unknown. All other tensors are unknown, and their memory is never used. Messages of unknown tensors are
// scaled; the filled slots and the rows that tell their sizes are known.
#include "emulated_kernels.h"

#include <algorithm>
#include <thread>

#include "drawn_routing.h"
#include "lancet/comm/communicator.h"
#include "lancet/ir/groups.h"
#include "lancet/ir/micro_batches.h"
#include "lancet/ops/catalogue.h"

namespace lancet::runtime {
namespace {

constexpr double most_taken = 0.9;      // of the compute stream's time, as in the simulator
constexpr double negligible_ns = 1000;  // not worth another sleep

bool is_router(const ir::Instruction& at) { return ops::op(at.op).is_router; }

std::set<const ir::Instruction*> find_computed(const ir::Program& program) {
  std::vector<bool> known = ops::find_counted(program);
  std::set<const ir::Instruction*> computed;
  std::set<ir::TensorId> scratches;  // of repeats, whose slices are tensors of their own
  for (const ir::Instruction& at : program.instructions)
    if (ir::is_repeat(at)) scratches.insert(at.results[ir::repeat_scratch]);
  const auto whole_of = [&](ir::TensorId id) {
    while (program[id].slice && !scratches.contains(program[id].storage)) id = program[id].storage;
    return id.index();
  };
  for (std::size_t i = 0; i < known.size(); ++i)
    if (program.tensors[i].kind == ir::TensorKind::input && program.tensors[i].type.dtype == DType::i32)
      known[i] = true;
  std::vector<bool> is_share_of_rank(known.size());
  for (const ir::Output& output : program.outputs)
    if (ir::is_share(output.kind)) is_share_of_rank[output.tensor.index()] = true;
  const auto is_known = [&](ir::TensorId id) { return known[whole_of(id)]; };
  const auto is_share = [&](ir::TensorId id) { return bool(is_share_of_rank[id.index()]); };
  const auto find = [&](const ir::Instruction& at) {
    if (ir::between_stages(at.stream)) return;
    const bool each_alone = ops::op(at.op).in_place && at.stream != ir::Stream::compute;
    const bool is = each_alone ? std::ranges::any_of(at.operands, is_known) || std::ranges::any_of(at.results, is_share)
                               : std::ranges::all_of(at.operands, is_known);
    if (is) computed.insert(&at);
    if (is || is_router(at))
      for (const ir::TensorId result : at.results) known[whole_of(result)] = true;
  };
  for (const ir::Instruction& at : program.instructions) {
    if (!ir::is_repeat(at)) find(at);
    if (ir::is_repeat(at)) known[at.results[ir::repeat_round].index()] = true;
    for (const ir::Instruction& part : at.body) find(part);
  }
  return computed;
}

// The axes along which ranks have other tokens at a router: those of the batch, and those whose ranks put their scores
// together.
ir::Axes axes_of_tokens(const ir::Program& program, const ir::Instruction& router, const ir::Mesh& mesh) {
  ir::Axes axes = ir::batch_axes;
  for (const ir::Instruction& at : program.instructions)
    if (ops::kind(at) == ops::Kind::collective && std::ranges::count(at.operands, router.results[0]) > 0)
      axes = axes | ir::group_of(at, mesh);
  return axes;
}

// The place of the rows i32[E/W, W+1] among the operands of an experts' op; none for other ops.
std::optional<std::size_t> rows_operand(const ir::Program& program, const ir::Instruction& at) {
  if (!ops::is_of_experts(at)) return {};
  for (std::size_t i = 0; i < at.operands.size(); ++i)
    if (const ir::TensorType& type = program.type(at.operands[i]); type.dtype == DType::i32 && type.shape.rank() == 2)
      return i;
  return {};
}

}  // namespace

Pace::Pace(const ir::Plan& plan, double signal_ns, double dilation)
    : plan_(plan),
      signal_ns_(signal_ns),
      dilation_(dilation),
      before_(plan.program.instructions.size(), -1),
      end_(plan.program.instructions.size()) {
  std::array<std::int32_t, ir::stream_count> last;
  last.fill(-1);
  for (std::size_t i = 0; i < before_.size(); ++i) {
    std::int32_t& previous = last[std::size_t(plan.program.instructions[i].stream)];
    before_[i] = previous;
    previous = std::int32_t(i);
  }
  for (std::size_t stream = 0; stream < ir::stream_count; ++stream)
    messages_[stream].reserve(std::size_t(std::ranges::count_if(
        plan.program.instructions, [&](const ir::Instruction& at) { return std::size_t(at.stream) == stream; })));
}

void Pace::begin_step() {
  for (auto& messages : messages_) messages.clear();
  late_.fill(0);
  start_ = Clock::now();
}

double Pace::now() const { return std::chrono::duration<double, std::nano>(Clock::now() - start_).count() / dilation_; }

void Pace::sleep_until(double time) const {
  std::this_thread::sleep_until(start_ + std::chrono::nanoseconds(std::int64_t(time * dilation_)));
}

double Pace::ready(std::int32_t instruction) const {
  const auto index = std::size_t(instruction);
  double ready = before_[index] < 0 ? 0 : end_[std::size_t(before_[index])];
  for (const ir::InstructionId wait : plan_.waits[index]) {
    const bool signalled = plan_.program.instructions[wait.index()].stream != plan_.program.instructions[index].stream;
    ready = std::max(ready, end_[wait.index()] + (signalled ? signal_ns_ : 0));
  }
  return ready;
}

void Pace::compute(std::int32_t instruction, double ns) {
  const double start = ready(instruction);
  double end = start + ns;
  for (;;) {
    sleep_until(end);
    const double later = start + ns + taken(start, end);
    if (later <= end + negligible_ns) break;
    end = later;
  }
  end_[std::size_t(instruction)] = end;
}

void Pace::begin(std::int32_t instruction) {
  const double start = ready(instruction);
  sleep_until(start);
  const double begun = end_[std::size_t(instruction)] = now();
  late_of(instruction) += std::max(0.0, begun - start);
}

void Pace::begin_message(std::int32_t instruction, double ns, double share) {
  const double begun = end_[std::size_t(instruction)];
  const std::lock_guard lock(mutex_);
  messages_of(instruction).push_back({begun, begun + ns, share});
}

void Pace::compute_beside(std::int32_t instruction, double ns) {
  double& end = end_[std::size_t(instruction)];
  begin_message(instruction, ns, 1);
  end += ns;
  sleep_until(end);
}

void Pace::end_message(std::int32_t instruction, double latency_ns) {
  const double wanted = now() + latency_ns;
  if (latency_ns > 0) sleep_until(wanted);
  const double end = end_[std::size_t(instruction)] = now();
  late_of(instruction) += end - wanted;
  const std::lock_guard lock(mutex_);
  Message& message = messages_of(instruction).back();
  message.end = std::min(message.end, end);
}

double Pace::late_ns() const {
  double sum = 0;
  for (const double late : late_) sum += late;
  return sum;
}

double Pace::taken(double from, double to) const {
  const std::lock_guard lock(mutex_);
  double sum = 0;
  for (const auto& messages : messages_)
    for (auto message = messages.rbegin(); message != messages.rend() && message->end > from; ++message)
      sum += message->share * std::max(0.0, std::min(to, message->end) - std::max(from, message->start));
  return std::min(sum, most_taken * (to - from));
}

std::size_t Pace::stream_of(std::int32_t instruction) const {
  return std::size_t(plan_.program.instructions[std::size_t(instruction)].stream);
}

EmulatedKernels::EmulatedKernels(const ir::Plan& plan, EmulatedDevice& device)
    : plan_(plan),
      device_(device),
      pace_(plan, device.costs().launch_ms() * ns_per_ms, device.options().dilation),
      computed_(find_computed(plan.program)),
      micro_batches_(ir::micro_batches(plan.program)) {}

// A declared machine has a cost of every op.
cost::OpCost EmulatedKernels::cost_of(const ir::Instruction& at) const {
  return cost::op_cost(device_.costs(), plan_.program, at).value();
}

void EmulatedKernels::begin_run(bool has_body) {
  pass_ = device_.begin_run(has_body ? micro_batches_ : 0);
  pace_.begin_step();
}

ops::Kernel EmulatedKernels::bind(std::int32_t instruction, const ops::KernelArgs& args) {
  const ir::Instruction& at = plan_.program.instructions[std::size_t(instruction)];
  if (at.stream != ir::Stream::compute)
    return [this, instruction, send = message(instruction, at, args)]() -> Status {
      pace_.begin(instruction);
      return send();
    };
  ops::Kernel work;
  if (is_router(at)) work = scores(at, args);
  if (computed_.contains(&at)) work = ops::find_cpu_kernel(at.op)->bind(args);
  return [this, instruction, work, time = declared(at, args)]() -> Status {
    if (work) LANCET_TRY(work());
    pace_.compute(instruction, time());
    return {};
  };
}

ops::Kernel EmulatedKernels::bind_part(std::int32_t repeat, const ir::Instruction& part, const ops::KernelArgs& args) {
  if (part.stream != ir::Stream::compute) return message(repeat, part, args);
  ops::Kernel work;
  if (computed_.contains(&part)) work = ops::find_cpu_kernel(part.op)->bind(args);
  return [this, repeat, work, time = declared(part, args)]() -> Status {
    if (work) LANCET_TRY(work());
    pace_.compute_beside(repeat, time());
    return {};
  };
}

ops::Kernel EmulatedKernels::bind_repeat(std::int32_t repeat, const std::int32_t* count, ops::Kernel rounds) {
  return [this, repeat, count, rounds = std::move(rounds)]() -> Status {
    if (*count <= 1) {
      leave_out(repeat);
      return {};
    }
    pace_.begin(repeat);
    return rounds();
  };
}

// The declared nanoseconds of an instruction. Those of the experts' ops depend on the rows that have come.
std::function<double()> EmulatedKernels::declared(const ir::Instruction& at, const ops::KernelArgs& args) const {
  const auto operand = rows_operand(plan_.program, at);
  if (!operand) return [time = cost_of(at).ms * ns_per_ms] { return time; };
  const ops::TensorView& view = args.operands[*operand];
  return [this, at = ir::Instruction(at), rows = view.as<std::int32_t>(), experts = view.shape()[0],
          columns = view.shape()[1]]() mutable {
    std::int64_t tokens = 0;
    for (std::int64_t e = 0; e < experts; ++e) tokens += rows[(e + 1) * columns - 1] - rows[e * columns];
    at.attributes.set("tokens", tokens);
    return cost::op_ms(device_.hardware(), plan_.program, at) * ns_per_ms;
  };
}

ops::Kernel EmulatedKernels::scores(const ir::Instruction& at, const ops::KernelArgs& args) const {
  const std::vector<int>& blocks = device_.options().loads->model().blocks;
  const int layer = int(std::ranges::find(blocks, ir::block_of(at.label).value()) - blocks.begin());
  const ops::TensorView& view = args.results[0];
  const std::int64_t first = at.attributes.integer("part", 0) * view.shape().rows();
  const EmulatedDevice::Options& options = device_.options();
  const ir::Mesh& mesh = options.layout.mesh;
  const int place = mesh.place(options.rank, axes_of_tokens(plan_.program, at, mesh));
  return [this, layer, place, first, micro = at.micro_batch,
          scores = std::span(view.as<float>(), std::size_t(view.elements()))]() -> Status {
    device_.routing().draw(layer, pass_ + micro, place, first, scores);
    return {};
  };
}

ops::Kernel EmulatedKernels::message(std::int32_t instruction, const ir::Instruction& at, ops::KernelArgs args) {
  ir::Instruction timed = at;
  timed.repeated = ir::is_repeat(plan_.program.instructions[std::size_t(instruction)]);
  const cost::OpCost cost = cost_of(timed);
  // What splits slots and rows by ranks sends nothing, nor does a part of an all-to-all that stays on the rank.
  const bool alone =
      !args.group.comm || args.group.size == 1 || ops::kind(at) == ops::Kind::part_helper || cost::reached(at) == 0;
  double latency = alone                             ? cost.ms * ns_per_ms
                   : at.stream == ir::Stream::reduce ? cost::share_of_all_reduce(at) * device_.all_reduce_latency_ns(at)
                                                     : device_.message_latency_ns(at);
  ops::Kernel send;
  if (computed_.contains(&at)) {
    send = ops::find_cpu_kernel(at.op)->bind(args);
  } else if (!alone) {
    scaled_.push_back(comm::make_scaled(*args.group.comm, device_.options().scale));
    args.group.comm = scaled_.back().get();
    args.messages_only = true;
    send = ops::find_cpu_kernel(at.op)->bind(args);
  }
  const double ns = cost.ms * ns_per_ms, share = cost.ms > 0 ? cost.core_ms / cost.ms : 0;
  return [this, instruction, ns, share, latency, send]() -> Status {
    pace_.begin_message(instruction, ns, share);
    if (send) LANCET_TRY(send());
    pace_.end_message(instruction, latency);
    return {};
  };
}

}  // namespace lancet::runtime
