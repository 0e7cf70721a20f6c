// Gates: from the experts that each token chose (ops/moe/top_k) to the choices' slots. A token gets the same slots in a
// part of a batch as in the whole batch. An expert keeps at most `capacity` choices of each group of tokens, and a gate
// says in which order they are served:
//   slots(expert [, counts of the part before]): token after token, each with all its choices. A part continues where
//       the part before ended. With one choice a token it is the Switch Transformer's order (Fedus et al.).
//   slots_by_priority(expert, weight): all first choices before all second ones, and so forth; within each, tokens by
//       falling weight of their first choice (V-MoE's Batch Prioritized Routing, Riquelme et al., section 4 and
//       algorithm 2, where the priority of a token is its largest weight). It looks at the whole batch.
//   slots_by_choice(expert): all first choices before all second ones, and so forth; within each, tokens in their order
//       (GShard, algorithm 1). It looks at the whole batch. Choices may be skipped (token_slots.h).
//   slots_by_weight(weight f32[T,E]): experts choose tokens (Zhou et al., Expert Choice Routing, section 3.2). Each
//       expert takes the tokens with its largest weights, equals by token. K = E, and choice k of a token is expert k
//       (every_expert in ops/moe/top_k), so no operand names the experts. A choice that is not kept is none: it is not
//       in the load, and nothing is dropped. It looks at the whole batch.
// The tokens of the whole batch form `groups` groups of neighbours. The kept choices of an expert get its slots in
// token order, group after group, so that a range of tokens fills a range of each expert's slots. A token chooses an
// expert at most once. Attribute experts: E. Results, of T tokens with K choices each and G groups:
//   slot i32[T,K]: -1: dropped
//   counts i32[G,E]: the choices of each group that each expert keeps, those of the parts before included
//   filled i32[E,2]: the slots that the tokens fill: of each expert the first and the one after the last
//   load f32[2L,E]: the number of choices of each expert and of those that were kept; of each of L runs of
//       `load_groups` neighbouring groups, or, without the attribute, of all groups together
#include <algorithm>
#include <cmath>

#include "ops/describe.h"

namespace lancet::ops {
namespace {

// The results for K choices of each token.
Inferred infer_results(const OpInput& in, std::int64_t tokens, std::int64_t choices) {
  if (in.attributes.integer("capacity") < 1) return expected("a capacity of at least 1");
  const std::int64_t experts = in.attributes.integer("experts"), groups = in.attributes.integer("groups");
  if (experts < choices) return expected("at least as many experts as choices of a token");
  if (groups < 1 || tokens * in.attributes.integer("parts", 1) % groups) return expected("groups of equal size");
  const std::int64_t load_groups = in.attributes.integer("load_groups", groups);
  if (load_groups < 1 || groups % load_groups) return expected("groups that load_groups divides");
  return Types{{DType::i32, {tokens, choices}},
               {DType::i32, {groups, experts}},
               {DType::i32, {experts, 2}},
               {DType::f32, {2 * (groups / load_groups), experts}}};
}

Inferred infer(const OpInput& in) {
  const TensorType& expert = in.operands[0];
  if (!is_of_tokens(expert)) return expected("expert i32[T,K]");
  return infer_results(in, expert.shape[0], expert.shape[1]);
}

Inferred infer_continued(const OpInput& in) {
  auto results = infer(in);
  if (results.ok() && in.operands.size() > 1 && in.operands[1] != (*results)[1])
    return expected("the counts i32[G,E] of the part before");
  return results;
}

Inferred infer_weighted(const OpInput& in) {
  if (in.operands[1] != TensorType{DType::f32, in.operands[0].shape}) return expected("weight f32[T,K]");
  return infer(in);
}

Inferred infer_by_weight(const OpInput& in) {
  const TensorType& weight = in.operands[0];
  const std::int64_t experts = in.attributes.integer("experts");
  if (weight.dtype != DType::f32 || weight.shape.rank() != 2 || weight.shape[1] != experts)
    return expected("weight f32[T,E] of all experts");
  return infer_results(in, weight.shape[0], experts);
}

// The experts are read twice, to count them and to give slots.
Work work(const OpInput& in) { return {0, 3 * double(ir::bytes(in.operands[0]))}; }

// The sort by priority comes on top: T keys of 8 bytes, each read and written log2 T times, as std::sort does on the
// CPU. On a GPU there are three more kernels: one lists each expert's choices, one selects among them, and one gives
// out the slots.
Work work_by_choice(const OpInput& in) {
  Work all = work(in);
  all.launches += 3;
  return all;
}
Work work_by_priority(const OpInput& in) {
  Work all = work_by_choice(in);
  const double tokens = double(in.operands[0].shape[0]);
  all.bytes += 2 * sizeof(std::uint64_t) * tokens * std::log2(std::max(tokens, 2.0));
  return all;
}

// On a GPU the weights are read for each of the four digits of a selection, and twice to give slots. A selection on the
// CPU moves about as many bytes.
Work work_by_weight(const OpInput& in) { return {0, 7 * double(ir::bytes(in.operands[0]))}; }

struct SampleSize {
  std::int64_t tokens, choices, experts, capacity, groups;
};
Sample sample_of(const SampleSize& size, bool weight) {
  const Attributes attributes{{"capacity", size.capacity}, {"groups", size.groups}, {"experts", size.experts}};
  Sample sample{{expert_of(size.tokens, size.choices)}, attributes};
  if (weight) sample.operands.push_back(weight_of(size.tokens, size.choices));
  return sample;
}

std::vector<Sample> samples(bool weight) {
  std::vector<Sample> all;
  for (const SampleSize& size : {SampleSize{16, 1, 4, 5, 1},
                                 {12, 1, 5, 1, 1},
                                 {2, 1, 3, 4, 1},
                                 {24, 1, 3, 4, 2},
                                 {24, 1, 4, 1, 8},
                                 {16, 2, 4, 6, 1},
                                 {12, 3, 5, 2, 1},
                                 {24, 2, 4, 3, 4}})
    all.push_back(sample_of(size, weight));
  all.push_back(sample_of({24, 2, 4, 2, 8}, weight));
  all.back().attributes.set("load_groups", std::int64_t(2));
  return all;
}

std::vector<Sample> samples_by_choice() {
  std::vector<Sample> all = samples(false);
  for (const SampleSize& size : {SampleSize{16, 2, 4, 6, 1}, {12, 3, 5, 2, 1}, {24, 2, 4, 3, 4}}) {
    all.push_back(sample_of(size, false));
    all.back().operands[0] = skipped_of(size.tokens, size.choices);
  }
  return all;
}

std::vector<Sample> samples_by_weight() {
  std::vector<Sample> all;
  for (const SampleSize& size : {SampleSize{16, 4, 4, 5, 1},
                                 {12, 5, 5, 1, 1},
                                 {2, 3, 3, 4, 1},
                                 {5, 1, 1, 3, 1},
                                 {24, 3, 3, 4, 2},
                                 {24, 4, 4, 1, 8},
                                 {24, 4, 4, 2, 8}})
    all.push_back({{weight_of(size.tokens, size.choices)},
                   {{"capacity", size.capacity}, {"groups", size.groups}, {"experts", size.experts}}});
  all.back().attributes.set("load_groups", std::int64_t(2));
  return all;
}

// Shards have whole groups, and loads of their own, or summands of the one load.
PartitionRow of_groups(ops::Axis load) { return {{0, 0}, {0, 0, partial, load}, SplitIn::space, {"groups"}}; }

const OpDef table[] = {
    {.name = "slots",
     .required = 1,
     .most = 2,
     .infer = infer_continued,
     .work = work,
     .partition = {{{0, irregular}, {0, cumulative, irregular, partial}, SplitIn::time},
                   {{0}, {0, 0, partial, 0}, SplitIn::space, {"groups"}},
                   {{0}, {0, 0, partial, partial}, SplitIn::space, {"groups"}}},
     .samples = samples(false),
     .kind = Kind::gate,
     .continued = 1},
    {.name = "slots_by_choice",
     .required = 1,
     .infer = infer,
     .work = work_by_choice,
     .partition = {of_groups(0), of_groups(partial)},
     .samples = samples_by_choice(),
     .kind = Kind::gate},
    {.name = "slots_by_priority",
     .required = 2,
     .infer = infer_weighted,
     .work = work_by_priority,
     .partition = {of_groups(0), of_groups(partial)},
     .samples = samples(true),
     .kind = Kind::gate},
    {.name = "slots_by_weight",
     .required = 1,
     .infer = infer_by_weight,
     .work = work_by_weight,
     .partition = {of_groups(0), of_groups(partial)},
     .samples = samples_by_weight(),
     .kind = Kind::gate},
};

}  // namespace

std::span<const OpDef> slots_ops() { return table; }

}  // namespace lancet::ops
