#include "bound_plan.h"

#include <fmt/format.h>

#include "lancet/ir/groups.h"
#include "lancet/ir/micro_batches.h"

namespace lancet::runtime {
namespace {

using ir::TensorId;

std::size_t aligned_input(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

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
  ops::KernelArgs args{.op = instruction.op, .operands = {}, .results = {}, .attributes = instruction.attributes};
  args.instruction = &instruction;
  for (TensorId id : instruction.operands) args.operands.push_back(view(id));
  for (TensorId id : instruction.results) args.results.push_back(view(id));
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
    return internal_error(error.what());
  }
}

Error error_at(const ir::Plan& plan, std::int32_t instruction, const Error& error) {
  const ir::Instruction& at = plan.program.instructions[static_cast<std::size_t>(instruction)];
  return {error.code,
          fmt::format("stream {}: [{}] {} at {}: {}", ir::name(at.stream), instruction, at.op, ir::place_of(at),
                      error.message),
          false};
}

}  // namespace lancet::runtime
