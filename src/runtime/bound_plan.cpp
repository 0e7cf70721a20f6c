#include "bound_plan.h"

#include <fmt/format.h>

#include "lancet/backend/cpu/parallel.h"
#include "lancet/base/exceptions.h"
#include "lancet/ir/groups.h"
#include "lancet/ir/micro_batches.h"

namespace lancet::runtime {
namespace {

using ir::TensorId;

std::size_t aligned_input(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

// Memory that the kernels allocate for themselves alone.
std::int64_t own_memory(const ir::Program& program, Accelerator& accelerator) {
  std::int64_t sum = 0;
  const auto add = [&](const ir::Instruction& instruction, ir::Stream) -> Status {
    const ops::DeviceKernel* kernel = accelerator.find_kernel(instruction.op);
    if (!kernel->own_memory) return {};
    ops::KernelArgs args = types_of(program, instruction);
    args.device = &accelerator.device();
    sum += static_cast<std::int64_t>(kernel->own_memory(args));
    return {};
  };
  LANCET_CHECK(ir::for_each_kernel(program, add).ok(), "sizes of own memory have no errors");
  return sum;
}

}  // namespace

Streams streams_of(const ir::Plan& plan) {
  Streams streams;
  std::vector<std::int32_t> position(plan.program.instructions.size());
  for (std::size_t i = 0; i < plan.program.instructions.size(); ++i) {
    const auto stream = static_cast<std::size_t>(plan.program.instructions[i].stream);
    position[i] = static_cast<std::int32_t>(streams[stream].size());
    StreamStep step{static_cast<std::int32_t>(i), {}};
    for (ir::InstructionId wait : plan.waits[i]) {
      const auto other = static_cast<std::uint8_t>(plan.program.instructions[wait.index()].stream);
      if (other != stream) step.waits.push_back({other, position[wait.index()] + 1});
    }
    streams[stream].push_back(std::move(step));
  }
  return streams;
}

Addresses::Addresses(const ir::Plan& plan, TensorStore& store, const Memory& arena, const Memory& inputs)
    : plan_(plan), store_(store), arena_(arena), inputs_(inputs), input_offsets_(plan.program.tensors.size(), -1) {
  LANCET_CHECK(arena.bytes >= static_cast<std::size_t>(plan.arena_bytes), "the arena has {} bytes, the plan needs {}",
               arena.bytes, plan.arena_bytes);
  std::size_t at = 0;
  for (std::size_t i = 0; i < input_offsets_.size(); ++i)
    if (const ir::Tensor& tensor = plan.program.tensors[i]; tensor.kind == ir::TensorKind::input) {
      input_offsets_[i] = static_cast<std::int64_t>(at);
      at += aligned_input(static_cast<std::size_t>(ir::bytes(tensor.type)));
    }
}

std::size_t Addresses::input_bytes(const ir::Program& program) {
  std::size_t bytes = 0;
  for (const ir::Tensor& tensor : program.tensors)
    if (tensor.kind == ir::TensorKind::input) bytes += aligned_input(static_cast<std::size_t>(ir::bytes(tensor.type)));
  return bytes;
}

ops::TensorView Addresses::view(TensorId id) const {
  const ir::Region region = plan_.program.region(id);
  const ir::Tensor& tensor = plan_.program[region.root];
  std::byte* data = nullptr;
  if (tensor.kind == ir::TensorKind::input) {
    data = inputs_.start + input_offsets_[region.root.index()];
  } else if (tensor.number < 0) {
    const NamedTensor& stored = store_[tensor.name];
    LANCET_CHECK(stored.type == tensor.type, "@{} is {} in the store and {} in the plan", tensor.name,
                 ir::to_string(stored.type), ir::to_string(tensor.type));
    data = stored.memory.start;
  } else if (plan_.offsets[region.root.index()] >= 0) {
    data = arena_.start + plan_.offsets[region.root.index()];
  }
  return {data ? data + region.begin : nullptr, plan_.program.type(id)};
}

ops::TensorView Addresses::input(std::string_view name) const {
  const TensorId id = plan_.program.find(name);
  LANCET_CHECK(id.valid() && plan_.program[plan_.program.root(id)].kind == ir::TensorKind::input,
               "the plan has no input @{}", name);
  return view(id);
}

ops::TensorView Addresses::output(std::string_view name) const {
  const TensorId id = plan_.program.output(name);
  LANCET_CHECK(id.valid(), "the plan has no output {}", name);
  return view(id);
}

ops::KernelArgs Addresses::arguments(const ir::Instruction& instruction) const {
  ops::KernelArgs args = types_of(plan_.program, instruction);
  for (std::size_t i = 0; i < args.operands.size(); ++i) args.operands[i] = view(instruction.operands[i]);
  for (std::size_t i = 0; i < args.results.size(); ++i) args.results[i] = view(instruction.results[i]);
  return args;
}

ops::KernelArgs types_of(const ir::Program& program, const ir::Instruction& instruction) {
  ops::KernelArgs args{.op = instruction.op, .operands = {}, .results = {}, .attributes = instruction.attributes};
  args.instruction = &instruction;
  for (const TensorId id : instruction.operands) args.operands.push_back({nullptr, program.type(id)});
  for (const TensorId id : instruction.results) args.results.push_back({nullptr, program.type(id)});
  return args;
}

Result<comm::Group> find_group(const ExecutorOptions& options, const ir::Instruction& instruction) {
  const comm::Groups& groups = options.groups[static_cast<std::size_t>(instruction.stream)];
  const std::string axes = ir::key_of(instruction);
  if (const auto found = groups.find(axes); found != groups.end()) return found->second;
  if (axes.empty() && (groups.empty() || instruction.stream == ir::Stream::compute)) return comm::Group();
  if (axes.empty())
    return internal_error(fmt::format("{} at {} goes over all ranks, a group that is not open on the stream {}",
                                      instruction.op, instruction.label, ir::name(instruction.stream)));
  return internal_error(fmt::format("{} at {} goes over the ranks along {}, a group that is not open on the stream {}",
                                    instruction.op, instruction.label, axes, ir::name(instruction.stream)));
}

Status call(const ops::Kernel& kernel) {
  try {
    return kernel();
  } catch (const std::exception& error) {
    return error_of(error);
  }
}

Error error_at(const ir::Plan& plan, std::int32_t instruction, const Error& error) {
  const ir::Instruction& at = plan.program.instructions[static_cast<std::size_t>(instruction)];
  return {error.code,
          fmt::format("stream {}: [{}] {} at {}: {}", ir::name(at.stream), instruction, at.op, ir::place_of(at),
                      error.message),
          false};
}

Result<std::int64_t> planned_workspace(const ir::Plan& plan, Accelerator* accelerator, int threads) {
  std::array<std::size_t, ir::stream_count> streams{};
  std::int64_t sum = 0;
  if (accelerator) {
    LANCET_TRY(accelerator->device().bind_thread());
    LANCET_ASSIGN(streams,
                  workspace_bytes(
                      plan, [&](std::string_view op) { return accelerator->find_kernel(op); }, &accelerator->device()));
    sum = own_memory(plan.program, *accelerator);
  } else {
    backend::cpu::set_threads(threads);  // the scratch of a kernel depends on it
    LANCET_ASSIGN(streams, workspace_bytes(plan, ops::find_cpu_kernel, nullptr));
  }
  for (const std::size_t bytes : streams) sum += static_cast<std::int64_t>(bytes);
  return sum;
}

}  // namespace lancet::runtime
