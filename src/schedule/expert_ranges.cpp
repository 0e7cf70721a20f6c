#include "expert_ranges.h"

#include <algorithm>
#include <map>

#include "lancet/ops/catalogue.h"
#include "split_search.h"

namespace lancet::schedule {
namespace {

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

}  // namespace

std::vector<ExpertRange> expert_ranges(const Step& step) {
  const std::map<ir::TensorId, std::size_t> layers = layers_of_rows(step);
  const AxisRows& rows_of_experts = step.rows(cut_named("capacity"));
  std::vector<ExpertRange> ranges;
  for (std::size_t i = 0; i < step.program().instructions.size(); ++i) {
    if (!rows_of_experts[i]) continue;
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

std::size_t layers_of(const std::vector<ExpertRange>& ranges) {
  std::size_t layers = 0;
  for (const ExpertRange& range : ranges) layers = std::max(layers, range.layer + 1);
  return layers;
}

LayerKinds::LayerKinds(const Step& step, const std::vector<ExpertRange>& ranges) {
  std::vector<std::vector<double>> costs(layers_of(ranges));
  for (const ExpertRange& range : ranges)
    for (std::size_t i = range.span.first; i < range.span.second; ++i)
      costs[range.layer].push_back(step.op_costs()[i].ms);
  std::map<std::vector<double>, std::size_t> kinds;
  for (const std::vector<double>& of_layer : costs)
    kinds_.push_back(kinds.emplace(of_layer, kinds.size()).first->second);
  count_ = kinds.size();
}

std::vector<Span> positions_of(const Rewritten& rewritten, const std::vector<ExpertRange>& ranges) {
  std::vector<Span> spans;
  for (const ExpertRange& range : ranges) spans.push_back(position_of(rewritten, range.span.first, range.span.second));
  return spans;
}

}  // namespace lancet::schedule
