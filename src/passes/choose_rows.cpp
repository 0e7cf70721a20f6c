#include "choose_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "lancet/ir/groups.h"
#include "lancet/ops/catalogue.h"

namespace lancet::passes {
namespace {

using ir::Axes;
using ir::Mesh;
using ir::Sharding;
using ir::Split;

// Adds a mesh axis to a sharding as an entry of a row says; false if it does not fit what is there.
bool place(Sharding& sharding, ir::Axis axis, ops::Axis entry, std::int64_t blocks) {
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

std::optional<ir::TensorType> shard_type(const ir::TensorType& type, const Sharding& sharding, const Mesh& mesh) {
  const auto shape = shard_shape(type.shape, sharding, mesh);
  if (!shape.ok()) return std::nullopt;
  return ir::TensorType{type.dtype, *shape};
}

// True if the op makes the ranks' results from the ranks' operands.
bool is_consistent(const ShardedInstruction& at, const Share& share, const Mesh& mesh) {
  std::vector<ir::TensorType> operands, results;
  for (std::size_t i = 0; i < at.operands.size(); ++i) {
    const auto type = shard_type(at.operands[i].type, share.operands[i], mesh);
    if (!type) return false;
    operands.push_back(*type);
  }
  for (std::size_t r = 0; r < at.results.size(); ++r) {
    const auto type = shard_type(at.results[r].type, share.results[r], mesh);
    if (!type) return false;
    results.push_back(*type);
  }
  const auto made = ops::op(at.instruction.op).infer({operands, share.attributes});
  return made.ok() && *made == results;
}

// The entries of a row, each with the operand or result that it is of.
template <class Body>
void for_each_entry(const ShardedInstruction& at, const ops::PartitionRow& row, const Body& body) {
  for (std::size_t i = 0; i < at.operands.size(); ++i) body(at.operands[i], row.operands[i]);
  for (std::size_t r = 0; r < at.results.size(); ++r) body(at.results[r], row.results[r]);
}

// The numbers of blocks in which a row may split its dimension: those in which some tensor is split now. Only a
// dimension that is the same in all tensors has others than the row's, and no placed row does: its shares are ranges.
std::set<std::int64_t> blocks_to_try(const ShardedInstruction& at, const ops::PartitionRow& row, ir::Axis axis) {
  std::set<std::int64_t> blocks{1};
  if (row.placed) return blocks;
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

// One more axis of the mesh is among those whose ranks have the shares. Axes come outermost first, as in a sharding.
void add_axis(ir::Attributes& attributes, ir::Axis axis) {
  Axes axes;
  if (attributes.has(ir::axes_attribute)) axes = *ir::parse_axes(attributes.text(ir::axes_attribute));
  axes.add(axis);
  attributes.set(ir::axes_attribute, ir::to_string(axes));
}

// The share that a row makes of a share along one more axis of the mesh, if it fits.
std::optional<Share> split(const ShardedInstruction& at, const Share& share, const ops::PartitionRow& row,
                           ir::Axis axis, std::int64_t blocks, const Mesh& mesh) {
  Share result{share.operands, share.results, ops::attributes_of_share(row, share.attributes, mesh[axis])};
  if (row.placed) add_axis(result.attributes, axis);
  bool fits = true;
  auto add = [&](Sharding& sharding, ops::Axis entry) {
    fits &= place(sharding, axis, entry, blocks * ops::blocks_of(entry));
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
      if (split.blocks > 1) add(split.blocks);
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
      for (const std::int64_t blocks : blocks_to_try(at, row, axis)) {
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

}  // namespace lancet::passes
