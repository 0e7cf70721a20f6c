// The baselines that split only the experts. For each part count, every MoE layer from its first expert instruction to
// its second all-to-all is split and its parts are ordered by list scheduling; everything else takes turns.
#include <fmt/format.h>

#include "lancet/ir/dependencies.h"
#include "lancet/ops/catalogue.h"
#include "lancet/schedule/overlap.h"
#include "orders.h"
#include "split_search.h"

namespace lancet::schedule {
namespace {

// Per MoE layer: its first expert instruction that can be split up to and including the second all-to-all.
std::vector<Span> expert_ranges(const Step& step) {
  std::vector<Span> ranges;
  int all_to_alls = 2;
  for (std::size_t i = 0; i < step.program().instructions.size(); ++i) {
    if (!step.rows(Cut::capacity)[i]) continue;
    if (all_to_alls == 2) {
      ranges.emplace_back(i, i);
      all_to_alls = 0;
    }
    all_to_alls += ops::kind(step.program().instructions[i]) == ops::Kind::all_to_all;
    ranges.back().second = i + 1;
  }
  return ranges;
}

Candidate experts_in_parts(const Step& step, Cut cut, int parts) {
  const Split split = step.all(cut, parts);
  const Rewritten rewritten = rewrite(step.program(), split);
  std::vector<Span> spans;
  for (const auto& [begin, end] : expert_ranges(step)) spans.push_back(position_of(rewritten, begin, end));
  const Orders orders(rewritten.program, step.op_costs(rewritten, split), spans);
  const Order order = orders.find({}).order;
  ir::Program program = orders.program(order);
  Dependencies needed = turns(program, ir::dependencies(program));
  return as_it_is(
      step,
      fmt::format("experts and their all-to-alls in {} {}", parts, cut == Cut::peers ? "groups of peers" : "parts"),
      std::move(program), orders.op_costs(order), std::move(needed));
}

Candidate split_experts(const Step& step, const config::Overlap& overlap, Cut cut, Candidate candidate) {
  candidate.how = "experts and their all-to-alls whole";
  return or_forced_split(std::move(candidate), step, overlap, cut, [&](Candidate best) {
    for (int parts : step.part_counts(cut)) best = better(std::move(best), experts_in_parts(step, cut, parts));
    return best;
  });
}

}  // namespace

Candidate split_experts_by_capacity(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  return split_experts(step, overlap, Cut::capacity, std::move(candidate));
}

Candidate split_experts_by_peers(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  return split_experts(step, overlap, Cut::peers, std::move(candidate));
}

}  // namespace lancet::schedule
