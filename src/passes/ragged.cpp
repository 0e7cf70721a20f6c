#include "ragged.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "lancet/base/check.h"
#include "lancet/ops/catalogue.h"

namespace lancet::passes {
namespace {

using ir::Sharding;
using ir::TensorId;
using Use = SlotUse::Kind;

constexpr int of_experts = 0, of_slots = 1;  // dimensions of a buffer

// Counts are summed by all_to_all_counts, for the experts of each rank; if all ranks have them, each takes its own.
bool may_change_counts(const Reshard& step) {
  return step.to == of_experts &&
         (step.kind == Reshard::Kind::reduce_scatter || step.kind == Reshard::Kind::take_shard);
}

bool may_change_buffer(const Reshard& step) {
  if (step.kind == Reshard::Kind::swap_shards) return std::max(step.from, step.to) == of_slots;
  return step.from != of_slots && step.to != of_slots;
}

}  // namespace

double step_cost(const SlotUse& use, const Reshard& step, const ReshardCost& cost) {
  constexpr double never = std::numeric_limits<double>::infinity();
  switch (use.kind) {
    case Use::none:
      return cost(step);
    case Use::buffer:
      if (!may_change_buffer(step)) return never;
      return step.kind == Reshard::Kind::swap_shards ? use.filled * cost(step) : cost(step);
    case Use::counts:
      return may_change_counts(step) ? cost(step) : never;
    case Use::windows:
      return step.kind == Reshard::Kind::sum_shards ? 0 : never;
    case Use::slots:
      break;
  }
  return never;
}

Sharding sharding_of_counts(const Sharding& buffer) {
  return {{buffer.dimensions[of_experts], {}}, ir::Axes(buffer.dimensions[of_slots].axes)};
}

RaggedTensors::RaggedTensors(const ir::Program& program)
    : uses_(program.tensors.size()),
      counts_(program.tensors.size()),
      buffers_(program.tensors.size()),
      tokens_(program.tensors.size()),
      partners_(program.tensors.size()) {
  for (const ir::Instruction& instruction : program.instructions) add(program, instruction);
  for (std::size_t i = 0; i < uses_.size(); ++i) {
    if (!counts_[i].valid() || tokens(counts_[i]) == 0) continue;
    const std::int64_t all = program.tensors[i].type.shape[of_experts] * program.tensors[i].type.shape[of_slots];
    uses_[i].filled = std::min(1.0, double(tokens(counts_[i])) / double(all));
  }
}

void RaggedTensors::add(const ir::Program& program, const ir::Instruction& at) {
  const auto& ragged = ops::op(at.op).ragged;
  if (!ragged || ragged->counts >= int(at.operands.size())) return;
  const TensorId counts = ragged->counts < 0 ? TensorId{} : at.operands[std::size_t(ragged->counts)];
  if (ragged->slots >= 0) uses_[at.operands[std::size_t(ragged->slots)].index()].kind = Use::slots;
  if (counts.valid()) {
    LANCET_CHECK(program.type(counts).shape.rank() == 2, "{}: counts are i32[E,2]", program.display(counts));
    uses_[counts.index()].kind = Use::counts;
    tokens_[counts.index()] = std::max(tokens(counts), at.attributes.integer("tokens", 0));
  }
  if (ragged->windows >= 0) {  // they come with the counts that the instruction makes beside them
    const TensorId windows = at.results[std::size_t(ragged->windows)];
    const TensorId made = at.results[std::size_t(ragged->windows - 1)];
    uses_[windows.index()].kind = Use::windows;
    partners_[windows.index()] = made;
    partners_[made.index()] = windows;
  }
  for (const int i : ragged->operands) add_buffer(at.operands[std::size_t(i)], counts);
  for (const int i : ragged->results) add_buffer(at.results[std::size_t(i)], counts);
}

void RaggedTensors::add_buffer(TensorId buffer, TensorId counts) {
  uses_[buffer.index()].kind = Use::buffer;
  if (!counts.valid() || counts_[buffer.index()] == counts) return;
  LANCET_CHECK(!counts_[buffer.index()].valid(), "tensor {} has two counts of its slots", buffer.value);
  counts_[buffer.index()] = counts;
  buffers_[counts.index()].push_back(buffer);
}

Result<Sharding> RaggedTensors::sharding_on(const ir::Program& program, TensorId id, const ir::Mesh& mesh) const {
  const ir::TensorType& type = program.type(id);
  if (const Status fits = check_sharding(type, *program[id].sharding, mesh); !fits.ok())
    return config_error(fmt::format("{}: {}", program.display(id), fits.error().message));
  Sharding sharding = restrict(*program[id].sharding, mesh.wide());
  const bool has_sums = type.dtype == DType::f32 || type.dtype == DType::bf16 || use(id).kind == Use::counts ||
                        use(id).kind == Use::windows;
  if (sharding.partial.empty() || has_sums) return sharding;
  return config_error(fmt::format("{}: expected a tensor of f32 or bf16 where it is partial over {}, found {}",
                                  program.display(id), ir::to_string(sharding.partial), name(type.dtype)));
}

Status RaggedTensors::check(const ir::Program& program, const std::vector<Sharding>& shardings) const {
  for (const ir::Instruction& at : program.instructions)
    for (const auto* tensors : {&at.operands, &at.results})
      for (const TensorId id : *tensors) {
        const Sharding& split = shardings[id.index()];
        auto refusal = [&](std::string_view expected) {
          return config_error(fmt::format("{}: expected {}, found {} {}", at.label, expected, program.display(id),
                                          ir::to_string(program.type(id).shape, split)));
        };
        if (use(id).kind == Use::buffer && split.dimensions[of_experts].axes.size() > 1)
          return refusal("experts over one axis of the mesh");
        if (use(id).kind == Use::slots && split.used().has(ir::Axis::tensor))
          return refusal("a gate whose tokens are not split over tensor");
      }
  return {};
}

}  // namespace lancet::passes
