// Part costs are found by rewriting: for each cut and each part count the whole step is split as far as possible, and
// the costs of the resulting instructions are looked up once, by part of the source instruction; helpers of the parts
// (joins, split slots, copies) are stored by op_key. The cost of any other split is put together from these.
#include "lancet/schedule/step.h"

#include <algorithm>
#include <functional>

#include "lancet/ir/dependencies.h"
#include "lancet/ir/groups.h"
#include "lancet/ops/catalogue.h"
#include "lancet/schedule/plan_memory.h"
#include "rings.h"

namespace lancet::schedule {
namespace {

using ir::Role;

// False if no tokens travel: rows are found from the all-to-alls on.
bool has_rows(const AxisRows& rows) {
  return std::ranges::any_of(rows, [](const auto& row) { return row != nullptr; });
}

// The split that has every helper which some split of the step by this cut may need.
Split with_helpers(Split split, const Cut& cut) {
  split.all_helpers = true;
  if (cut.has_pipelines) split.pipeline.assign(split.parts.size(), 0);
  return split;
}

Split split_all(const AxisRows& rows, const Cut& cut, const TokenRanks& among, int parts) {
  Split split{rows, std::vector<int>(rows.size(), 1), std::vector<const Cut*>(rows.size(), &cut), among};
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (rows[i]) split.parts[i] = parts;
  return split;
}

// on_host: of a group of ranks, those that share a host.
TokenRanks token_ranks(const ir::Program& program, const std::function<std::int64_t(ir::Axes)>& on_host) {
  for (const ir::Instruction& at : program.instructions)
    if (ops::kind(at) == ops::Kind::counts) return {at.attributes.integer("ranks"), on_host(ir::group_of(at))};
  return {};
}

}  // namespace

std::vector<int> part_counts(const config::Overlap& overlap) {
  if (overlap.parts > 1) return {static_cast<int>(overlap.parts)};
  std::vector<int> counts;
  for (int k = 2; overlap.parts == 0 && k <= std::min<std::int64_t>(overlap.max_parts, ir::max_parts); k *= 2)
    counts.push_back(k);
  return counts;
}

std::vector<ir::Program> variants(const ir::Program& step, const config::Overlap& overlap, const cost::Layout& layout) {
  std::vector<ir::Program> result{step};
  const TokenRanks among = token_ranks(step, [&](ir::Axes group) { return layout.ranks_sharing_host(group); });
  const std::vector<int> wanted = part_counts(overlap);
  for (const Cut* cut : all_cuts()) {
    const AxisRows rows = cut->rows(step);
    if (!has_rows(rows) || wanted.empty()) continue;
    for (int k : cut->part_counts(step, rows, among, wanted))
      result.push_back(rewrite(step, with_helpers(split_all(rows, *cut, among, k), *cut)).program);
  }
  for (ir::Program& rings : ring_variants(step)) result.push_back(std::move(rings));
  return result;
}

Result<Step> Step::make(const ir::Program& program, const cost::Costs& costs, std::vector<int> part_counts) {
  Step step;
  step.program_ = program;
  step.costs_ = &costs;
  step.wanted_counts_ = std::move(part_counts);
  step.arena_bytes_ = plan_memory_sequentially(program).arena_bytes;
  step.peak_bytes_ = schedule::peak_bytes(program);
  LANCET_TRY(step.find_costs());
  for (const ir::Program& rings : ring_variants(program)) LANCET_TRY(cost::op_costs(costs, rings));
  return step;
}

Result<Step> Step::with_program(const ir::Program& program) const {
  Step step;
  step.program_ = program;
  step.costs_ = costs_;
  step.wanted_counts_ = wanted_counts_;
  step.arena_bytes_ = arena_bytes_;
  step.peak_bytes_ = peak_bytes_;
  step.original_ = &original();
  LANCET_TRY(step.find_costs());
  return step;
}

Step Step::in_parts(int least, int most) const {
  Step step = *this;
  step.original_ = &original();
  const auto is_other = [&](int count) { return count < least || count > most; };
  std::erase_if(step.wanted_counts_, is_other);
  for (auto& [_, of] : step.cuts_) std::erase_if(of.counts, is_other);
  return step;
}

Status Step::find_costs() {
  dependencies_ = ir::dependencies(program_);
  LANCET_ASSIGN(op_costs_, cost::op_costs(*costs_, program_));
  while (forward_end_ < op_costs_.size() && program_.instructions[forward_end_].role == Role::forward) ++forward_end_;
  among_ = token_ranks(program_, [&](ir::Axes group) { return costs_->ranks_on_host(group); });
  for (const Cut* cut : all_cuts()) {
    OfCut& made = cuts_[cut] = {cut->rows(program_)};
    if (!has_all_to_all() || !has_rows(made.rows) || wanted_counts_.empty()) continue;
    made.counts = cut->part_counts(program_, made.rows, among_, wanted_counts_);
    for (int k : made.counts) LANCET_TRY(add_part_costs(*cut, k));
  }
  return {};
}

const Cut& Step::token_cut() const {
  const Cut &batch = cut_named("batch"), &positions = cut_named("positions");
  return part_counts(batch).empty() && !part_counts(positions).empty() ? positions : batch;
}

bool Step::has_all_to_all() const {
  for (std::size_t i = 0; i < op_costs_.size(); ++i)
    if (program_.instructions[i].stream == ir::Stream::expert && op_costs_[i].ms > 0) return true;
  return false;
}

Split Step::whole(const Cut& cut) const { return split_all(rows(cut), cut, among_, 1); }
Split Step::all(const Cut& cut, int parts) const { return split_all(rows(cut), cut, among_, parts); }

Status Step::add_part_costs(const Cut& cut, int parts) {
  const Split split = with_helpers(all(cut, parts), cut);
  Rewritten rewritten = rewrite(program_, split);
  std::vector<std::size_t> made;  // the instructions that parts of the split are, and its helpers
  std::vector<ir::Instruction> instructions;
  for (std::size_t i = 0; i < rewritten.origin.size(); ++i) {
    const int origin = rewritten.origin[i];
    if (origin >= 0 && split.parts[std::size_t(origin)] == 1) continue;
    made.push_back(i);
    instructions.push_back(std::move(rewritten.program.instructions[i]));
  }
  rewritten.program.instructions = std::move(instructions);
  const ir::Program& program = rewritten.program;
  LANCET_ASSIGN(const std::vector<cost::OpCost> op_costs, cost::op_costs(*costs_, program));
  auto& by_origin = cuts_.at(&cut).costs[parts];
  by_origin.resize(program_.instructions.size());
  for (std::size_t i = 0; i < made.size(); ++i) {
    const ir::Instruction& at = program.instructions[i];
    const int origin = rewritten.origin[made[i]];
    if (origin < 0) {
      helpers_.emplace(cost::op_key(program, at), op_costs[i]);
      continue;
    }
    std::vector<cost::OpCost>& of_parts = by_origin[std::size_t(origin)];
    // One cost, that of the last part, stands for all, unless parts reach other ranks, run as many rounds as the tokens
    // of the parts before them fill, or read what is before them.
    if (!cut.peers && !ir::is_repeat(at) && !(cut.by_positions && ops::op(at.op).positions)) of_parts.clear();
    of_parts.push_back(op_costs[i]);
  }
  return {};
}

const cost::OpCost& Step::part_cost(const Cut& cut, int parts, std::size_t instruction, int part) const {
  if (parts == 1) return op_costs_[instruction];
  const std::vector<cost::OpCost>& of_parts = of(cut).costs.at(parts)[instruction];
  return of_parts[std::min(std::size_t(part), of_parts.size() - 1)];
}

std::vector<cost::OpCost> Step::op_costs(const Rewritten& rewritten, const Split& split) const {
  std::vector<cost::OpCost> result;
  for (std::size_t i = 0; i < rewritten.origin.size(); ++i) {
    if (rewritten.origin[i] < 0) {
      result.push_back(helper_cost(rewritten.program, i));
      continue;
    }
    const auto origin = std::size_t(rewritten.origin[i]);
    const int parts = split.parts[origin];
    const int part = parts == 1 ? 0 : int(rewritten.program.instructions[i].attributes.integer("part"));
    result.push_back(part_cost(*split.cuts[origin], parts, origin, part));
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

Candidate as_it_is(const Step& step, std::string how, ir::Program program, std::vector<cost::OpCost> op_costs,
                   Dependencies dependencies) {
  Candidate result{std::move(how), std::move(program), std::move(dependencies), std::move(op_costs), {}};
  result.timeline =
      simulate(result.program, result.needed, result.op_costs, step.costs().interference(), step.costs().launch_ms());
  return result;
}

bool fits_memory(const Step& step, const config::Overlap& overlap, const Candidate& candidate) {
  return overlap.memory_factor == 0 ||
         double(arena_bytes(candidate.program, candidate.needed)) <= overlap.memory_factor * double(step.arena_bytes());
}

bool is_shorter(const Candidate& a, const Candidate& b) {
  return a.timeline.makespan < b.timeline.makespan * (1 - 1e-9);
}

int most_parts(const ir::Program& program) {
  int most = 1;
  for (const ir::Instruction& instruction : program.instructions)
    most = std::max(most, int(instruction.attributes.integer("parts", 1)));
  return most;
}

}  // namespace lancet::schedule
