// Part costs are found by rewriting: for each way to cut and each part count the whole step is split as far as
// possible, and the costs of the resulting instructions are looked up once. All parts of an instruction cost the same,
// so one cost per source instruction is stored; helpers of the parts (joins, split slots, copies) are stored by
// op_key. The cost of any other split is put together from these. Groups of peers use the parts of a cut by capacity: a
// group gets as many tokens, but its all-to-alls send fewer messages.
#include "lancet/schedule/step.h"

#include <algorithm>
#include <functional>

#include "lancet/ir/dependencies.h"
#include "lancet/ops/catalogue.h"

namespace lancet::schedule {
namespace {

using ir::InstructionId;
using ir::Role;

bool in_layers(const ir::Instruction& at) { return at.role == Role::forward || at.role == Role::dx; }

std::vector<InstructionId> members(const ir::Program& program, const std::function<bool(const ir::Instruction&)>& is) {
  std::vector<InstructionId> result;
  for (std::size_t i = 0; i < program.instructions.size(); ++i)
    if (is(program.instructions[i])) result.push_back({static_cast<std::int32_t>(i)});
  return result;
}

bool is_expert_core(const ir::Instruction& at) {
  const ops::Kind kind = ops::kind(at);
  return kind == ops::Kind::counts || kind == ops::Kind::all_to_all || ops::is_over_expert_rows(at);
}

// Weight gradients stay whole, so that their bits are the same as without parts, unless the operands that they keep
// alive until all parts are made are a large share of all values (the logits).
bool keeps_much_alive(const ir::Program& program, const ir::Instruction& at, std::int64_t all) {
  constexpr std::int64_t share = 32;
  if (at.role != Role::dw || std::ranges::none_of(ops::op(at.op).partition, &ops::PartitionRow::in_time)) return false;
  return share * (ir::bytes(program.type(at.operands[0])) + ir::bytes(program.type(at.operands[1]))) > all;
}

// False if no tokens travel: rows are found from the all-to-alls on.
bool has_rows(const AxisRows& rows) {
  return std::ranges::any_of(rows, [](const ops::PartitionRow* row) { return row != nullptr; });
}

// The split that has every helper which some split of the step may need: along the batch, with copies as well.
Split with_helpers(Split split) {
  split.all_helpers = true;
  if (split.cut == Cut::batch) split.pipeline.assign(split.parts.size(), 0);
  return split;
}

// True if every instruction that has a row can be split in `parts` equal parts along the batch.
bool divides(const ir::Program& program, const AxisRows& rows, int parts) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i]) continue;
    const ir::Instruction& at = program.instructions[i];
    for (std::size_t o = 0; o < at.operands.size(); ++o)
      if (rows[i]->operands[o] == 0 && program.type(at.operands[o]).shape[0] % parts != 0) return false;
  }
  return true;
}

Split all_of(const AxisRows& rows, Cut cut, int parts) {
  Split split{rows, std::vector<int>(rows.size(), 1), cut};
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (rows[i]) split.parts[i] = parts;
  return split;
}

std::size_t end_of_forward(const ir::Program& program) {
  std::size_t end = 0;
  while (end < program.instructions.size() && program.instructions[end].role == Role::forward) ++end;
  return end;
}

}  // namespace

AxisRows axis_rows(const ir::Program& program, Cut cut) {
  std::int64_t all = 0;
  for (const ir::Tensor& tensor : program.tensors)
    if (tensor.number >= 0 && !tensor.storage.valid()) all += ir::bytes(tensor.type);
  return infer_axes(program, members(program, [&](const ir::Instruction& at) {
                      if (cut == Cut::capacity) return in_layers(at) && is_expert_core(at);
                      return in_layers(at) || keeps_much_alive(program, at, all);
                    }));
}

std::vector<int> part_counts(const config::Overlap& overlap) {
  if (overlap.parts > 1) return {static_cast<int>(overlap.parts)};
  std::vector<int> counts;
  for (int k = 2; overlap.parts == 0 && k <= std::min<std::int64_t>(overlap.max_parts, ir::max_parts); k *= 2)
    counts.push_back(k);
  return counts;
}

std::vector<ir::Program> variants(const ir::Program& step, const config::Overlap& overlap) {
  std::vector<ir::Program> result{step};
  for (Cut cut : {Cut::batch, Cut::capacity}) {
    const AxisRows rows = axis_rows(step, cut);
    if (!has_rows(rows)) continue;
    for (int k : part_counts(overlap)) {
      if (!divides(step, rows, k)) continue;
      result.push_back(rewrite(step, with_helpers(all_of(rows, cut, k))).program);
    }
  }
  return result;
}

Result<Step> Step::make(const ir::Program& program, const cost::Costs& costs, std::vector<int> part_counts) {
  Step step;
  step.program_ = program;
  step.costs_ = &costs;
  step.dependencies_ = ir::dependencies(program);
  LANCET_ASSIGN(step.op_costs_, cost::op_costs(costs, program));
  step.forward_end_ = end_of_forward(program);
  step.batch_rows_ = axis_rows(program, Cut::batch);
  step.capacity_rows_ = axis_rows(program, Cut::capacity);
  if (!step.has_all_to_all()) return step;
  for (int k : part_counts) {
    if (has_rows(step.batch_rows_) && divides(program, step.batch_rows_, k)) {
      step.batch_parts_.push_back(k);
      LANCET_TRY(step.add_part_costs(Cut::batch, k));
    }
    if (!has_rows(step.capacity_rows_)) continue;
    step.capacity_parts_.push_back(k);
    LANCET_TRY(step.add_part_costs(Cut::capacity, k));
    if (step.ranks() % k == 0) step.peer_parts_.push_back(k);
  }
  return step;
}

std::int64_t Step::ranks() const {
  for (const ir::Instruction& at : program_.instructions)
    if (ops::kind(at) == ops::Kind::counts) return at.attributes.integer("ranks");
  return 1;
}

bool Step::has_all_to_all() const {
  for (std::size_t i = 0; i < op_costs_.size(); ++i)
    if (program_.instructions[i].stream == ir::Stream::expert && op_costs_[i].ms > 0) return true;
  return false;
}

Split Step::whole(Cut cut) const { return {rows(cut), std::vector<int>(program_.instructions.size(), 1), cut}; }
Split Step::all(Cut cut, int parts) const { return all_of(rows(cut), cut, parts); }

Status Step::add_part_costs(Cut cut, int parts) {
  const Split split = with_helpers(all(cut, parts));
  const Rewritten rewritten = rewrite(program_, split);
  LANCET_ASSIGN(const std::vector<cost::OpCost> op_costs, cost::op_costs(*costs_, rewritten.program));
  std::vector<cost::OpCost>& by_origin = part_costs_[{cut, parts}];
  by_origin.resize(program_.instructions.size());
  for (std::size_t i = 0; i < op_costs.size(); ++i) {
    if (rewritten.origin[i] >= 0)
      by_origin[std::size_t(rewritten.origin[i])] = op_costs[i];
    else
      helpers_.emplace(cost::op_key(rewritten.program, rewritten.program.instructions[i]), op_costs[i]);
  }
  if (cut == Cut::capacity) add_peer_costs(rewritten, parts);
  return {};
}

void Step::add_peer_costs(const Rewritten& by_capacity, int parts) {
  std::vector<cost::OpCost> op_costs = part_costs_.at({Cut::capacity, parts});
  const std::int64_t all = ranks();
  for (std::size_t i = 0; i < by_capacity.origin.size() && all > 1; ++i) {
    const ir::Instruction& at = by_capacity.program.instructions[i];
    if (by_capacity.origin[i] >= 0 && ops::kind(at) == ops::Kind::all_to_all)
      op_costs[std::size_t(by_capacity.origin[i])] = costs_->all_to_all(by_capacity.program, at, all / parts);
  }
  part_costs_[{Cut::peers, parts}] = std::move(op_costs);
}

const cost::OpCost& Step::part_cost(Cut cut, int parts, std::size_t instruction) const {
  return parts == 1 ? op_costs_[instruction] : part_costs_.at({cut, parts})[instruction];
}

std::vector<cost::OpCost> Step::op_costs(const Rewritten& rewritten, const Split& split) const {
  std::vector<cost::OpCost> result;
  for (std::size_t i = 0; i < rewritten.origin.size(); ++i) {
    const int origin = rewritten.origin[i];
    result.push_back(origin >= 0 ? part_cost(split.cut, split.parts[std::size_t(origin)], std::size_t(origin))
                                 : helper_cost(rewritten.program, i));
  }
  return result;
}

cost::OpCost Step::helper_cost(const ir::Program& program, std::size_t instruction) const {
  if (!cost::is_local(program, program.instructions[instruction])) return {};
  const auto it = helpers_.find(cost::op_key(program, program.instructions[instruction]));
  LANCET_CHECK(it != helpers_.end(), "no variant of the step has {}",
               cost::op_key(program, program.instructions[instruction]));
  return it->second;
}

}  // namespace lancet::schedule
