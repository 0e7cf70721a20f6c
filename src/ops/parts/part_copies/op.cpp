// Copies at the borders of a range whose parts have memory of their own (Lancet, Fig. 8a: the partition and
// reconstruction instructions at the begin and end of a pipeline). Parts that are slices of the whole need none.
//   copy(x) -> x: a part of a tensor that was made whole
//   concat(part...) -> the parts one after another along the first axis
//   merge_slots(buffer, filled, buffer, filled, ...) -> buffer: the filled rows of the experts' buffers of all parts
//       in their order. Each part has a buffer of full size; `filled` is its filled slots i32[E,2], or rows i32[E,W+1].
//       Attribute tokens: the expected number of filled rows of all parts.
// Parts of the last axis are dense tensors of their own, which a copy puts in their place in the whole:
//   place_columns(tile [E,C,D/parts], filled) {part, parts} -> [E,C,D]: writes the columns of the tile of the filled
//       slots and leaves all others as they are. Attribute tokens: as above, of one tile.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

bool is_copied(DType dtype) { return is_activation(dtype) || dtype == DType::i32; }

Inferred infer_concat(const OpInput& in) {
  TensorType whole = in.operands[0];
  if (!is_copied(whole.dtype) || whole.shape.rank() < 1) return expected("tensors of f32, bf16 or i32");
  for (const TensorType& part : in.operands)
    if (part != in.operands[0]) return expected("parts of one type");
  whole.shape.set(0, whole.shape[0] * std::int64_t(in.operands.size()));
  return Types{whole};
}

// True if `filled` says which rows of each of `experts` experts a part has filled.
bool names_rows(const TensorType& filled, std::int64_t experts) {
  return filled.dtype == DType::i32 && filled.shape.rank() == 2 && filled.shape[0] == experts && filled.shape[1] > 1;
}

Inferred infer_merge_slots(const OpInput& in) {
  const TensorType& buffer = in.operands[0];
  if (!is_activation(buffer.dtype) || buffer.shape.rank() != 3 || in.operands.size() % 2 != 0)
    return expected("a buffer [E,R,D] of f32 or bf16 and its filled rows for each part");
  for (std::size_t i = 0; i < in.operands.size(); i += 2)
    if (in.operands[i] != buffer || !names_rows(in.operands[i + 1], buffer.shape[0]))
      return expected("buffers of one type, each with the filled slots or rows of its experts");
  return Types{buffer};
}

Inferred infer_place_columns(const OpInput& in) {
  TensorType whole = in.operands[0];
  if (!is_activation(whole.dtype) || whole.shape.rank() != 3 || !names_rows(in.operands[1], whole.shape[0]))
    return expected("columns of a buffer, [E,C,D/n] of f32 or bf16, and the filled slots of its experts");
  const std::int64_t part = in.attributes.integer("part", 0), parts = in.attributes.integer("parts");
  if (part < 0 || part >= parts) return expected("one of the tiles");
  whole.shape.set(2, whole.shape[2] * parts);
  return Types{whole};
}

// Each filled row is read and written once.
Work work_merge_slots(const OpInput& in) {
  const TensorType& buffer = in.operands[0];
  const double rows = double(expected_rows(in, buffer.shape.rows()));
  return {0, 2 * rows * double(buffer.shape.back()) * size_of(buffer.dtype)};
}

const Attributes sample_route{{"capacity", 8}, {"tokens", 16}};

const OpDef table[] = {
    {.name = "copy",
     .forms = {{"x:any[...] -> copy:any[...]"}},
     .samples = {of("...=3,5,7"), of("...=2,4,37 bf16"), of("...=2,5 i32", {{"vocabulary", 9}})},
     .kind = Kind::part_helper},
    {.name = "concat",
     .required = 1,
     .most = any_number,
     .infer = infer_concat,
     .samples = {{{f32({1, 5, 7}), f32({1, 5, 7}), f32({1, 5, 7})}, {}}, {{bf16({2, 4, 37}), bf16({2, 4, 37})}, {}}},
     .kind = Kind::part_helper},
    {.name = "merge_slots",
     .required = 2,
     .most = any_number,
     .infer = infer_merge_slots,
     .work = work_merge_slots,
     .samples = {{{f32({4, 8, 7}), i32({4, 2}, Fill::rows)}, sample_route},
                 {{bf16({4, 8, 24}), i32({4, 2}, Fill::rows)}, sample_route}},
     .kind = Kind::part_helper},
    {.name = "place_columns",
     .required = 2,
     .infer = infer_place_columns,
     .work = work_merge_slots,
     .samples = {{{f32({4, 8, 7}), i32({4, 2}, Fill::rows)},
                  {{"capacity", 8}, {"tokens", 16}, {"part", 1}, {"parts", 2}}},
                 {{bf16({4, 8, 24}), i32({4, 2}, Fill::rows)},
                  {{"capacity", 8}, {"tokens", 16}, {"part", 0}, {"parts", 3}}}},
     .kind = Kind::part_helper},
};

}  // namespace

std::span<const OpDef> part_copies_ops() { return table; }

}  // namespace lancet::ops
