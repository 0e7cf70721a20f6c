// Gates: from the experts that each token chose (ops/top_k) to the choices' slots. A token gets the same slots in a
// part of a batch as in the whole batch. An expert keeps at most `capacity` choices of each group of tokens, and a gate
// says in which order they are served:
//   slots(expert [, counts of the part before]): token after token, each with all its choices. A part continues where
//       the part before ended. With one choice a token it is the Switch Transformer's order (Fedus et al.).
//   slots_by_priority(expert, weight): all first choices before all second ones, and so forth; within each, tokens by
//       falling weight of their first choice (V-MoE's Batch Prioritized Routing, Riquelme et al., section 4 and
//       algorithm 2, where the priority of a token is its largest weight). It looks at the whole batch.
//   slots_by_choice(expert): all first choices before all second ones, and so forth; within each, tokens in their order
//       (GShard, algorithm 1). It looks at the whole batch. Choices may be skipped (token_slots.h).
//   slots_by_weight(expert, weight): the choices of all tokens by falling weight, equals by token (Zhou et al., Expert
//       Choice Routing, section 3.2: with all experts as the choices of each token, every expert takes the tokens with
//       its largest scores). Experts choose tokens, so a choice that is not kept is none: it is not in the load, and
//       nothing is dropped. It looks at the whole batch.
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

Inferred infer(const OpInput& in) {
  const TensorType& expert = in.operands[0];
  if (!is_of_tokens(expert, expert.shape[0])) return expected("expert i32[T,K]");
  if (in.attributes.integer("capacity") < 1) return expected("a capacity of at least 1");
  const std::int64_t tokens = expert.shape[0], experts = in.attributes.integer("experts");
  const std::int64_t groups = in.attributes.integer("groups");
  if (experts < expert.shape[1]) return expected("at least as many experts as choices of a token");
  if (groups < 1 || tokens * in.attributes.integer("parts", 1) % groups) return expected("groups of equal size");
  const std::int64_t load_groups = in.attributes.integer("load_groups", groups);
  if (load_groups < 1 || groups % load_groups) return expected("groups that load_groups divides");
  return Types{expert,
               {DType::i32, {groups, experts}},
               {DType::i32, {experts, 2}},
               {DType::f32, {2 * (groups / load_groups), experts}}};
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

Work work_by_weight(const OpInput& in) {
  Work all = work_by_choice(in);
  const double entries = double(in.operands[0].shape.elements());
  all.bytes += 2 * sizeof(std::uint64_t) * entries * std::log2(std::max(entries, 2.0));
  return all;
}

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
     .required = 2,
     .infer = infer_weighted,
     .work = work_by_weight,
     .partition = {of_groups(0), of_groups(partial)},
     .samples = samples(true),
     .kind = Kind::gate},
};

}  // namespace

std::span<const OpDef> slots_ops() { return table; }

}  // namespace lancet::ops
