#include "choose_rows.h"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "lancet/base/check.h"
#include "lancet/ir/groups.h"
#include "lancet/ops/catalogue.h"

namespace lancet::passes {
namespace {

using ir::Axes;
using ir::Mesh;
using ir::Sharding;
using ir::Split;

// Adds a mesh axis to a sharding as an entry of a row says; false if it does not fit what is there.
bool place(Sharding& sharding, ir::Axis axis, ops::Axis entry, const ir::Blocks& blocks) {
  if (entry == ops::none) return true;
  if (entry == ops::partial || entry == ops::accumulated || entry == ops::once) {
    sharding.partial.add(axis);
    return true;
  }
  const int d = ops::index_of(entry, int(sharding.dimensions.size()));
  if (!ops::is_split(entry) || d < 0 || d >= int(sharding.dimensions.size())) return false;
  Split& split = sharding.dimensions[std::size_t(d)];
  if (!split.axes.empty() && split.blocks != blocks) return false;
  split.axes.push_back(axis);
  split.blocks = blocks;
  return true;
}

// True if the op makes the ranks' results from the ranks' operands.
bool is_consistent(const ShardedInstruction& at, const Share& share, const Mesh& mesh) {
  std::vector<ir::TensorType> operands, results;
  const auto add = [&](const auto& tensors, const std::vector<Sharding>& shardings,
                       std::vector<ir::TensorType>& types) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto shape = shard_shape(tensors[i].type.shape, shardings[i], mesh);
      if (!shape.ok()) return false;
      types.push_back({tensors[i].type.dtype, *shape});
    }
    return true;
  };
  if (!add(at.operands, share.operands, operands) || !add(at.results, share.results, results)) return false;
  const auto made = ops::op(at.instruction.op).infer({operands, share.attributes});
  return made.ok() && *made == results;
}

// The entries of a row, each with the operand or result that it is of.
template <class Body>
void for_each_entry(const ShardedInstruction& at, const ops::PartitionRow& row, const Body& body) {
  for (std::size_t i = 0; i < at.operands.size(); ++i) body(at.operands[i], row.operands[i]);
  for (std::size_t r = 0; r < at.results.size(); ++r) body(at.results[r], row.results[r]);
}

// The blocks in which a row may split its dimension, beside those that it names: those in which some tensor is split
// now. Only a dimension that is the same in all tensors has others, and no placed row does: its shares are ranges.
std::set<ir::Blocks> blocks_to_try(const ShardedInstruction& at, const ops::PartitionRow& row, ir::Axis axis) {
  std::set<ir::Blocks> blocks{1};
  if (row.placed || !row.packed.empty()) return blocks;
  std::vector<ir::TensorType> operands, results;
  for (const ShardedOperand& operand : at.operands) operands.push_back(operand.type);
  for (const ShardedOperand& result : at.results) results.push_back(result.type);
  if (!ops::has_one_extent(operands, results, row)) return blocks;
  for_each_entry(at, row, [&](const ShardedOperand& operand, ops::Axis entry) {
    if (!ops::is_split(entry)) return;
    const int d = ops::index_of(entry, operand.type.shape.rank());
    if (d < 0 || d >= operand.type.shape.rank()) return;
    for (const Sharding& sharding : operand.shardings) {
      const Split& split = sharding.dimensions[std::size_t(d)];
      if (std::ranges::count(split.axes, axis) > 0) blocks.insert(split.blocks);
    }
  });
  return blocks;
}

// The share that a row makes of a share along one more axis of the mesh, if it fits.
std::optional<Share> split(const ShardedInstruction& at, const Share& share, const ops::PartitionRow& row,
                           ir::Axis axis, const ir::Blocks& blocks, const Mesh& mesh) {
  Share result{share.operands, share.results, ops::attributes_of_share(row, share.attributes, mesh[axis])};
  if (row.placed) {  // one more axis is among those whose ranks have the shares
    Axes axes;
    if (result.attributes.has(ir::axes_attribute)) axes = *ir::parse_axes(result.attributes.text(ir::axes_attribute));
    axes.add(axis);
    result.attributes.set(ir::axes_attribute, ir::to_string(axes));
  }
  bool fits = true;
  auto add = [&](Sharding& sharding, ops::Axis entry) {
    fits &= place(sharding, axis, entry, entry == ops::packed ? ops::blocks_of(row, entry, share.attributes) : blocks);
  };
  for (std::size_t i = 0; i < at.operands.size(); ++i) add(result.operands[i], row.operands[i]);
  for (std::size_t r = 0; r < at.results.size(); ++r) add(result.results[r], row.results[r]);
  return fits && is_consistent(at, result, mesh) ? std::optional(std::move(result)) : std::nullopt;
}

bool applies(const ops::PartitionRow& row, const ShardedInstruction& at) {
  if (!row.in_space() || at.operands.size() > row.operands.size() || at.results.size() > row.results.size())
    return false;
  bool splits = false;  // a row whose optional operands alone are split does nothing without them
  for_each_entry(at, row, [&](const ShardedOperand&, ops::Axis entry) { splits |= ops::is_split(entry); });
  for (std::size_t i = 0; i < at.operands.size(); ++i) splits |= row.operands[i] == ops::partial;
  return splits;
}

std::string key(const ShardedOperand& operand, const Sharding& from, const Sharding& to) {
  const ir::TensorType& type = operand.type;
  std::string bytes{char(type.dtype), char(operand.slots.kind)};
  auto add = [&](auto value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof value); };
  add(operand.slots.filled);
  for (const std::int64_t extent : type.shape.span()) add(extent);
  for (const Sharding* sharding : {&from, &to}) {
    bytes += ir::to_string(sharding->partial);
    for (const Split& split : sharding->dimensions) {
      bytes += '|';
      for (const ir::Axis axis : split.axes) bytes += char(axis);
      if (split.blocks != 1) bytes += to_string(split.blocks);
    }
    bytes += ';';
  }
  return bytes;
}

}  // namespace

Result<Share> RowChooser::choose(const ShardedInstruction& at) {
  Share share{{}, {}, at.instruction.attributes};
  for (const ShardedOperand& operand : at.operands)
    share.operands.push_back(Sharding::whole(std::size_t(operand.type.shape.rank())));
  for (const ShardedOperand& result : at.results)
    share.results.push_back(Sharding::whole(std::size_t(result.type.shape.rank())));
  Axes axes;
  for (const ir::Axis axis : ir::all_axes) {
    if (mesh_[axis] == 1 || axis == ir::Axis::stage) continue;  // no tensor is split over stages: check_sharding()
    axes.add(axis);
    Share best = share;
    auto least = price(at, share, axes);
    if (least) least->replicated = true;
    for (const ops::PartitionRow& row : ops::op(at.instruction.op).partition) {
      if (!applies(row, at)) continue;
      for (const ir::Blocks& blocks : blocks_to_try(at, row, axis)) {
        auto candidate = split(at, share, row, axis, blocks, mesh_);
        if (!candidate) continue;
        const auto found = price(at, *candidate, axes);
        if (!found || (least && !(*found < *least))) continue;
        least = found;
        best = std::move(*candidate);
      }
    }
    if (!least)
      return config_error(fmt::format(
          "{}: expected a way to split {} over {} that leaves what it updates in place as it is sharded, found none",
          at.instruction.label, at.instruction.op, name(axis)));
    share = std::move(best);
  }
  return share;
}

std::optional<RowChooser::Price> RowChooser::price(const ShardedInstruction& at, const Share& share, Axes axes) {
  Price sum;
  auto add = [&](const std::optional<Price>& part) {
    if (!part) return false;
    sum.unmet += part->unmet;
    sum.gathered += part->gathered;
    sum.cost += part->cost;
    sum.collectives += part->collectives;
    sum.steps += part->steps;
    return true;
  };
  for (std::size_t i = 0; i < at.operands.size(); ++i)
    if (!add(price_of(at.operands[i], share.operands[i], false, axes))) return std::nullopt;
  for (std::size_t r = 0; r < at.results.size(); ++r)
    if (!add(price_of(at.results[r], share.results[r], true, axes))) return std::nullopt;
  return sum;
}

std::optional<RowChooser::Price> RowChooser::price_of(const ShardedOperand& operand, const Sharding& sharding,
                                                      bool is_result, Axes axes) {
  if (operand.shardings.empty()) return Price{};
  std::optional<Price> least;
  for (const Sharding& other : operand.shardings) {
    const Sharding there = restrict(other, axes);
    Price found = is_result ? price_of(operand, sharding, there) : price_of(operand, there, sharding);
    found.gathered =
        operand.is_parameter && there.used().has(ir::Axis::tensor) && !sharding.used().has(ir::Axis::tensor);
    if (operand.pinned && found.steps > 0) continue;
    if (std::isinf(found.cost)) continue;
    if (!least || found < *least) least = found;
  }
  // Slots cannot get every sharding that their neighbours would like.
  if (!least && is_result && !operand.pinned) return Price{.unmet = 1};
  return least;
}

const RowChooser::Price& RowChooser::price_of(const ShardedOperand& operand, const Sharding& from, const Sharding& to) {
  const auto [entry, is_new] = prices_.try_emplace(key(operand, from, to));
  if (is_new) {
    const ReshardSteps way = reshard_steps(operand.type, from, to, mesh_,
                                           [&](const Reshard& step) { return step_cost(operand.slots, step, cost_); });
    entry->second = {.cost = way.cost, .collectives = way.collectives(), .steps = int(way.steps.size())};
  }
  return entry->second;
}

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
