// What is split of the MoE layers where only the experts are.
#pragma once
#include <vector>

#include "lancet/schedule/step.h"
#include "orders.h"

namespace lancet::schedule {

// In one pass, what is split of an MoE layer: its first expert instruction up to and including the last all-to-all.
struct ExpertRange {
  Span span;
  std::size_t layer = 0;
  bool forward = true;
};

// In program order. A pass of a layer may have more than two all-to-alls, as where tensor parallelism sends the
// experts' results back once more in the backward pass.
std::vector<ExpertRange> expert_ranges(const Step& step);
std::size_t layers_of(const std::vector<ExpertRange>& ranges);

// The kinds of MoE layers: those whose ranges cost the same are of one kind, and searches give them one choice.
class LayerKinds {
 public:
  LayerKinds(const Step& step, const std::vector<ExpertRange>& ranges);
  std::size_t count() const { return count_; }
  // A choice for each layer, from one for each kind.
  template <class Choice>
  std::vector<Choice> by_layer(const std::vector<Choice>& choices) const {
    std::vector<Choice> result;
    for (const std::size_t kind : kinds_) result.push_back(choices[kind]);
    return result;
  }

 private:
  std::vector<std::size_t> kinds_;  // by layer
  std::size_t count_ = 0;
};

// Where the ranges are in the split step.
std::vector<Span> positions_of(const Rewritten& rewritten, const std::vector<ExpertRange>& ranges);

}  // namespace lancet::schedule
