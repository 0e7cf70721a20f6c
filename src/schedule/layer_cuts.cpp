#include "layer_cuts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <map>

#include "lancet/ops/catalogue.h"
#include "split_search.h"

namespace lancet::schedule {
namespace {

// The parts of the layer's all-to-alls in this pass.
int parts_in(const Step& step, const Split& split, const Span& span) {
  int parts = 1;
  for (std::size_t i = span.first; i < span.second; ++i)
    if (ops::kind(step.program().instructions[i]) == ops::Kind::all_to_all) parts = std::max(parts, split.parts[i]);
  return parts;
}

std::string in_words(const LayerCuts& cuts) {
  std::string text;
  if (cuts.parts > 1) text = fmt::format("{} {}", cuts.parts, cuts.cut->words.parts);
  if (cuts.columns > 1)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", cuts.columns, cut_named("columns").words.parts);
  return text;
}

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

LayerMixes::LayerMixes(const Step& step, Split base) : step_(step), base_(std::move(base)) {
  const std::vector<ExpertRange> ranges = expert_ranges(step);
  layers_.resize(layers_of(ranges));
  std::vector<int> forward_parts(layers_.size(), 1);
  for (const ExpertRange& range : ranges) {
    const int parts = parts_in(step, base_, range.span);
    if (range.forward) forward_parts[range.layer] = parts;
    if (parts == 1) layers_[range.layer].whole.push_back(range.span);
  }
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    layers_[l].backward_only = forward_parts[l] > 1;
    layers_[l].choices = choices_of(layers_[l], forward_parts[l]);
  }
}

std::vector<int> LayerMixes::counts(const Cut& cut) const {
  const std::vector<int>& all = step_.part_counts(cut);
  return all.size() <= 2 ? all : std::vector{all.front(), all.back()};
}

std::vector<LayerCuts> LayerMixes::choices_of(const Layer& layer, int forward_parts) const {
  std::vector<LayerCuts> choices{{}};
  if (layer.whole.empty()) return choices;
  const Cut &batch = step_.token_cut(), &sources = cut_named("source_rows"), &capacity = cut_named("capacity");
  std::vector<LayerCuts> rows{{}};
  if (layer.backward_only) rows.push_back({&batch, forward_parts});
  for (const int count : counts(sources))
    if (!layer.backward_only) rows.push_back({&sources, count});
  for (LayerCuts cuts : rows) {
    if (cuts.parts > 1) choices.push_back(cuts);
    for (const int count : counts(cut_named("columns"))) {
      cuts.columns = count;
      choices.push_back(cuts);
    }
  }
  for (const int count : counts(capacity))
    if (!layer.backward_only) choices.push_back({&capacity, count});
  return choices;
}

Split LayerMixes::with(const std::vector<LayerCuts>& cuts) const {
  Split split = base_;
  for (std::size_t l = 0; l < layers_.size(); ++l)
    for (const Span& span : layers_[l].whole) {
      if (cuts[l].parts > 1) cut_span(split, step_, span, *cuts[l].cut, cuts[l].parts);
      if (cuts[l].columns > 1) cut_span(split, step_, span, cut_named("columns"), cuts[l].columns);
    }
  return split;
}

double LayerMixes::most_hidden_ms() const {
  double hidden = 0;
  for (const Layer& layer : layers_)
    for (const auto& [begin, end] : layer.whole) {
      double messages = 0, experts = 0;
      for (std::size_t i = begin; i < end; ++i) {
        const bool computes = step_.program().instructions[i].stream == ir::Stream::compute;
        (computes ? experts : messages) += step_.op_costs()[i].ms;
      }
      if (layer.choices.size() > 1) hidden += std::min(messages, experts);
    }
  return hidden;
}

std::string LayerMixes::describe(const std::vector<LayerCuts>& cuts) const {
  std::map<std::string, std::vector<std::size_t>> layers;  // by their cuts in words
  for (std::size_t l = 0; l < cuts.size(); ++l)
    if (cuts[l] != LayerCuts{})
      layers[(layers_[l].backward_only ? "backward experts in " : "experts in ") + in_words(cuts[l])].push_back(l);
  std::string text;
  for (const auto& [words, of] : layers) {
    text += fmt::format("; {}", words);
    if (of.size() < cuts.size()) text += fmt::format(" of MoE layers {}", fmt::join(of, ", "));
  }
  return text;
}

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
