// What can be cut of single MoE layers besides what a split along the batch cuts: the splits that search_orders mixes.
#pragma once

#include <string>
#include <vector>

#include "lancet/schedule/step.h"
#include "orders.h"

namespace lancet::schedule {

// What is split of the MoE layers where only the experts are.

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

// The cuts of one MoE layer, in the passes that the batch does not split.
struct LayerCuts {
  const Cut* cut = nullptr;  // of the experts and their all-to-alls, but for those that `columns` cuts; null: whole
  int parts = 1;
  int columns = 1;  // tiles of what the experts send back
  friend bool operator==(const LayerCuts&, const LayerCuts&) = default;
};

// A split of the step, and what cuts of its layers may be added.
class LayerMixes {
 public:
  // Cuts in the least and the largest number of parts that the step has.
  LayerMixes(const Step& step, Split base);

  std::size_t layers() const { return layers_.size(); }
  // The cuts that a layer can have, the whole first. A layer that the batch splits in no pass can be cut by source rows
  // and columns (Comet) or by capacity (Tutel), in both passes alike, since a buffer's rows are in the order of its
  // parts. Of a layer that the batch splits in the forward pass alone, the backward pass can have the same parts
  // between its all-to-alls, and columns. A layer split in both passes stays as it is.
  const std::vector<LayerCuts>& choices(std::size_t layer) const { return layers_[layer].choices; }
  // The base with these cuts, one for each layer.
  Split with(const std::vector<LayerCuts>& cuts) const;
  // The most that the cuts can hide, in milliseconds: in each pass of a layer, its all-to-alls under its experts.
  double most_hidden_ms() const;
  std::string describe(const std::vector<LayerCuts>& cuts) const;

 private:
  struct Layer {
    std::vector<Span> whole = {};  // its passes that the batch does not split
    std::vector<LayerCuts> choices = {};
    bool backward_only = false;
  };
  std::vector<LayerCuts> choices_of(const Layer& layer, int forward_parts) const;
  std::vector<int> counts(const Cut& cut) const;

  const Step& step_;
  const Split base_;
  std::vector<Layer> layers_;
};

}  // namespace lancet::schedule
