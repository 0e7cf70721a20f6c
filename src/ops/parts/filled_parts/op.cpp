// Helpers around the parts of an MoE layer that is split in time (Lancet, sections 5.2 and 6). A part fills a range of
// each expert's slots. There are three ways to split filled slots i32[E,2], as a gate makes them of a whole batch:
//   split_filled(expert, slot [, part before]) {experts}: by tokens. The part's tokens fill the slots after those of
//       the part before.
//   split_capacity(filled) {part, parts}: an equal share of the filled slots of every expert.
//   split_peers(filled) {part, parts, ranks [, host]}: the slots of the experts on one group of ranks (PeerParts).
//       Without `host` the ranks form `parts` groups of neighbours. Part p is the p-th group counted from the rank's
//       own, modulo `parts`, so part 0 stays within the group, and in every part each group sends to one other group
//       (the all-to-alls by groups of workers of FasterMoE). With it, part 0 is the rank itself, part 1 the rest of its
//       host of `host` ranks, and the others are tiles of the ranks of other hosts (Comet, section 3.1.2). It is on the
//       expert stream, because it depends on the rank.
// The rows i32[E/W,W+1] that were found for all parts at once are split in the same way, on the expert stream, so that
// the messages which follow need not wait for the compute stream. The parts' rows follow each other:
//   capacity_rows(rows) {part, parts, ranks} -> rows of the part: of those from each rank, the ones that split_capacity
//   makes
//       that rank send in the part.
//   peer_rows(rows) {part, parts, ranks [, host]} -> rows of the part: those that come from the ranks which send to it
//       in the part. With `host`, the buffer of every expert begins with the rank's own rows.
// The others join what parts have made:
//   join_rows(rows of each part...) -> where each expert's rows, or filled slots, begin and end, over all parts
//   sum(part...) -> the sum of partial results, added in order in f32 and rounded once (on a GPU every 32 parts)
#include "lancet/ops/peer_parts.h"
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Inferred infer_split(const OpInput& in) {
  const TensorType filled{DType::i32, {in.attributes.integer("experts"), 2}};
  if (!is_of_tokens(in.operands[0]) || in.operands[1] != in.operands[0]) return expected("expert and slot i32[T,K]");
  if (in.operands.size() > 2 && in.operands[2] != filled)
    return expected("the filled slots i32[E,2] of the part before");
  return Types{filled};
}

// True if the operand is i32[E,2] and the attributes name one of its parts.
bool is_part_of_filled(const OpInput& in) {
  const std::int64_t part = in.attributes.integer("part");
  return is_filled(in.operands[0], in.operands[0].shape[0]) && part >= 0 && part < in.attributes.integer("parts");
}

Inferred infer_split_capacity(const OpInput& in) {
  if (!is_part_of_filled(in)) return expected("filled slots i32[E,2] and one of their parts");
  return Types{in.operands[0]};
}

Inferred infer_split_peers(const OpInput& in) {
  const PeerParts peers = peer_parts(in.attributes);
  if (!is_part_of_filled(in) || !peers.fit() || in.operands[0].shape[0] % peers.ranks)
    return expected("filled slots i32[E,2], one of their parts and ranks that divide E and that the parts divide");
  return Types{in.operands[0]};
}

Inferred infer_capacity_rows(const OpInput& in) {
  const TensorType& rows = in.operands[0];
  const std::int64_t part = in.attributes.integer("part");
  const bool fits =
      rows.dtype == DType::i32 && rows.shape.rank() == 2 && rows.shape[1] == in.attributes.integer("ranks") + 1;
  if (!fits || part < 0 || part >= in.attributes.integer("parts"))
    return expected("rows i32[E/W,W+1] of W ranks and one of their parts");
  return Types{rows};
}

Inferred infer_peer_rows(const OpInput& in) {
  const TensorType& rows = in.operands[0];
  const PeerParts peers = peer_parts(in.attributes);
  const std::int64_t part = in.attributes.integer("part");
  const bool fits = rows.dtype == DType::i32 && rows.shape.rank() == 2 && rows.shape[1] == peers.ranks + 1;
  if (!fits || !peers.fit() || part < 0 || part >= peers.parts)
    return expected("rows i32[E/W,W+1] of W ranks and one of the parts that the ranks form");
  return Types{rows};
}

// What is on the expert stream here sends nothing and takes no time worth a measurement.
Work nothing(const OpInput&) { return {}; }

Inferred infer_same(const OpInput& in, bool fits, std::string_view what) {
  for (const TensorType& part : in.operands)
    if (!fits || part != in.operands[0]) return expected(what);
  return Types{in.operands[0]};
}
Inferred infer_join_rows(const OpInput& in) {
  return infer_same(in, in.operands[0].dtype == DType::i32, "rows i32[E/W,W+1] of one type");
}
Inferred infer_sum(const OpInput& in) {
  return infer_same(in, is_activation(in.operands[0].dtype), "f32 or bf16 tensors of one type");
}

const OpDef table[] = {
    {.name = "split_filled",
     .required = 2,
     .most = 3,
     .infer = infer_split,
     .samples = {{{expert_of(16), slot_of(16)}, {{"capacity", 16}, {"experts", 4}}},
                 {{expert_of(16, 2), slot_of(16, 2)}, {{"capacity", 6}, {"experts", 4}}}},
     .kind = Kind::part_helper},
    {.name = "split_capacity",
     .required = 1,
     .infer = infer_split_capacity,
     .samples = {{{filled_of(4)}, {{"capacity", 5}, {"tokens", 16}, {"part", 1}, {"parts", 2}}}},
     .kind = Kind::part_helper},
    {.name = "split_peers",
     .required = 1,
     .infer = infer_split_peers,
     .work = nothing,
     .samples = {{{filled_of(4)}, {{"capacity", 5}, {"tokens", 16}, {"part", 1}, {"parts", 2}, {"ranks", 2}}},
                 {{filled_of(4)}, {{"capacity", 5}, {"tokens", 16}, {"part", 0}, {"parts", 2}, {"ranks", 4}}},
                 {{filled_of(4)},
                  {{"capacity", 5}, {"tokens", 16}, {"part", 2}, {"parts", 3}, {"ranks", 4}, {"host", 2}}}},
     .stream = ir::Stream::expert,
     .kind = Kind::part_helper},
    {.name = "capacity_rows",
     .required = 1,
     .infer = infer_capacity_rows,
     .work = nothing,
     .samples = {{{i32({4, 2}, Fill::rows)},
                  {{"capacity", 5}, {"tokens", 16}, {"part", 1}, {"parts", 3}, {"ranks", 1}}}},
     .stream = ir::Stream::expert,
     .kind = Kind::part_helper},
    {.name = "peer_rows",
     .required = 1,
     .infer = infer_peer_rows,
     .work = nothing,
     .samples = {{{i32({4, 2}, Fill::rows)},
                  {{"capacity", 5}, {"tokens", 16}, {"part", 0}, {"parts", 1}, {"ranks", 1}}}},
     .stream = ir::Stream::expert,
     .kind = Kind::part_helper},
    {.name = "join_rows",
     .required = 1,
     .most = any_number,
     .infer = infer_join_rows,
     .samples = {{{i32({4, 2}, Fill::rows)}, {{"capacity", 5}, {"tokens", 16}}}},
     .kind = Kind::part_helper},
    {.name = "sum",
     .required = 1,
     .most = any_number,
     .infer = infer_sum,
     .samples = {{{f32({2, 5}), f32({2, 5}), f32({2, 5})}, {}}, {{bf16({3, 7}), bf16({3, 7}), bf16({3, 7})}, {}}},
     .kind = Kind::part_helper},
};

}  // namespace

std::span<const OpDef> filled_parts_ops() { return table; }

}  // namespace lancet::ops
