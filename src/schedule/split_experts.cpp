// The baselines that split only the experts. Every MoE layer, from its first expert instruction to its last
// all-to-all, is split and its parts are put in order; everything else takes turns. Forward and backward ranges of a
// layer have the same number of parts.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "lancet/ir/dependencies.h"
#include "lancet/ops/catalogue.h"
#include "lancet/schedule/overlap.h"
#include "orders.h"
#include "pipelines.h"
#include "split_search.h"

namespace lancet::schedule {
namespace {

// In one pass, what is split of an MoE layer: its first expert instruction up to and including the last all-to-all.
struct ExpertRange {
  Span span;
  std::size_t layer = 0;
  bool forward = true;
};

// The MoE layer of each tensor that says which slots or rows of the layer are filled. Both passes of a layer read them.
std::map<ir::TensorId, std::size_t> layers_of_rows(const Step& step) {
  std::map<ir::TensorId, std::size_t> layers;
  std::size_t count = 0;
  for (const ir::Instruction& at : step.program().instructions) {
    if (ops::kind(at) != ops::Kind::all_to_all) continue;
    const auto [filled, is_new] = layers.emplace(at.operands[1], count);
    if (is_new) ++count;
    layers.emplace(at.operands[2], filled->second);
  }
  return layers;
}

// In program order. A pass of a layer may have more than two all-to-alls, as where tensor parallelism sends the
// experts' results back once more in the backward pass.
std::vector<ExpertRange> expert_ranges(const Step& step) {
  const std::map<ir::TensorId, std::size_t> layers = layers_of_rows(step);
  std::vector<ExpertRange> ranges;
  for (std::size_t i = 0; i < step.program().instructions.size(); ++i) {
    if (!step.rows(Cut::capacity)[i]) continue;
    const ir::Instruction& at = step.program().instructions[i];
    const auto rows = std::ranges::find_if(at.operands, [&](ir::TensorId id) { return layers.contains(id); });
    LANCET_CHECK(rows != at.operands.end(), "{} reads no rows that all-to-alls move", at.label);
    const ExpertRange range{{i, i + 1}, layers.at(*rows), at.role == ir::Role::forward};
    if (ranges.empty() || ranges.back().layer != range.layer || ranges.back().forward != range.forward)
      ranges.push_back(range);
    else
      ranges.back().span.second = i + 1;
  }
  return ranges;
}

enum class PartOrder { list_schedule, stages };

// The orders that the instructions of the spans can have; all else stays in program order.
Order order_of(const Rewritten& rewritten, const std::vector<cost::OpCost>& op_costs, const std::vector<Span>& spans,
               PartOrder how) {
  if (how == PartOrder::list_schedule) return Orders(rewritten.program, op_costs, spans).find({}).order;
  return staged(rewritten.program, ir::dependencies(rewritten.program), spans);
}

// degrees: the number of parts of each MoE layer.
Candidate experts_in_parts(const Step& step, Cut cut, const std::vector<int>& degrees, PartOrder how) {
  const std::vector<ExpertRange> ranges = expert_ranges(step);
  Split split = step.whole(cut);
  for (const ExpertRange& range : ranges)
    for (std::size_t i = range.span.first; i < range.span.second; ++i)
      if (split.rows[i]) split.parts[i] = degrees[range.layer];
  const Rewritten rewritten = rewrite(step.program(), split);
  std::vector<Span> spans;
  for (const ExpertRange& range : ranges) spans.push_back(position_of(rewritten, range.span.first, range.span.second));
  const std::vector<cost::OpCost> op_costs = step.op_costs(rewritten, split);
  const Order order = order_of(rewritten, op_costs, spans, how);
  ir::Program program = permuted(rewritten.program, order);
  Dependencies needed = turns(program, ir::dependencies(program));
  const bool alike = std::ranges::count(degrees, degrees.front()) == std::ptrdiff_t(degrees.size());
  return as_it_is(step,
                  fmt::format("experts and their all-to-alls in {} {}",
                              alike ? std::to_string(degrees.front()) : fmt::format("{}", fmt::join(degrees, ", ")),
                              cut == Cut::peers ? "groups of peers" : "parts"),
                  std::move(program), permuted(op_costs, order), std::move(needed));
}

std::vector<int> all_alike(const Step& step, int parts) {
  std::size_t layers = 0;
  for (const ExpertRange& range : expert_ranges(step)) layers = std::max(layers, range.layer + 1);
  return std::vector<int>(layers, parts);
}

Candidate split_experts(const Step& step, const config::Overlap& overlap, Cut cut, PartOrder how, Candidate candidate) {
  candidate.how = "experts and their all-to-alls whole";
  if (expert_ranges(step).empty()) return candidate;  // no tokens travel
  return or_forced_split(std::move(candidate), step, overlap, cut, [&](Candidate best) {
    for (int parts : step.part_counts(cut))
      best = better(std::move(best), experts_in_parts(step, cut, all_alike(step, parts), how));
    return best;
  });
}

// The best degree for all layers alike, then layer by layer the degree that makes the step shortest.
Candidate search_degrees(const Step& step, PartOrder how, Candidate best) {
  std::vector<int> degrees = all_alike(step, 1);
  std::vector<int> choices{1};
  for (int parts : step.part_counts(Cut::capacity)) choices.push_back(parts);
  auto try_degrees = [&](const std::vector<int>& tried) {
    Candidate candidate = experts_in_parts(step, Cut::capacity, tried, how);
    if (candidate.timeline.makespan >= best.timeline.makespan * (1 - 1e-9)) return;
    best = std::move(candidate);
    degrees = tried;
  };
  for (int parts : step.part_counts(Cut::capacity)) try_degrees(all_alike(step, parts));
  for (std::size_t layer = 0; layer < degrees.size(); ++layer)
    for (int parts : choices) {
      std::vector<int> tried = degrees;
      tried[layer] = parts;
      if (tried != degrees) try_degrees(tried);
    }
  return best;
}

}  // namespace

Candidate split_experts_by_capacity(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  return split_experts(step, overlap, Cut::capacity, PartOrder::list_schedule, std::move(candidate));
}

Candidate split_experts_by_peers(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  return split_experts(step, overlap, Cut::peers, PartOrder::list_schedule, std::move(candidate));
}

Candidate smart_schedule(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  return split_experts(step, overlap, Cut::peers, PartOrder::stages, std::move(candidate));
}

Candidate degree_per_layer(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  if (overlap.parts > 0) return split_experts_by_capacity(step, overlap, std::move(candidate));
  candidate.how = "experts and their all-to-alls whole";
  for (PartOrder how : {PartOrder::stages, PartOrder::list_schedule})
    candidate = search_degrees(step, how, std::move(candidate));
  return candidate;
}

}  // namespace lancet::schedule
