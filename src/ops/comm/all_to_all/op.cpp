// The irregular all-to-all (Lancet, section 6 and Fig. 10) in two phases: the counts, once per layer and part; then the
// filled slots, to the experts' ranks and back, in the forward and the backward pass.
//   all_to_all_counts(filled i32[E,2] [, rows before]) -> rows i32[E/W, W+1]: for each expert of this rank, where the
//       rows of each source rank begin in its buffer; the last entry is their end. A part begins where the part before
//       ended.
//   all_to_all_counts_windows(filled, windows i32[1] [, rows before]) -> rows, windows i32[1]: likewise, and the
//       largest number of windows of a rank of the group (ops/parts/window), one more word in each message
//   all_to_all(slots [E,C,D], filled, rows) -> [E/W, W*C, D], rows packed without gaps
//   all_to_all_back(buffer [E/W,W*C,D], filled, rows) -> slots [E,C,D], the inverse
// An unsplit all-to-all of a layer that was split in parts names the filled slots and rows of every part: (slots,
// filled, rows, filled, rows). Attributes: tokens, the expected number of filled slots of this rank; axes, the group of
// W ranks over which the experts are spread (ir/groups.h), without it all ranks.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

// before: the operand with the rows of the part before, if there is one.
Result<TensorType> infer_rows(const OpInput& in, std::size_t before) {
  const TensorType& filled = in.operands[0];
  const std::int64_t experts = filled.shape[0], ranks = in.attributes.integer("ranks");
  if (!is_filled(filled, experts) || ranks < 1 || experts % ranks)
    return expected("filled i32[E,2] of experts that the ranks divide");
  const TensorType rows{DType::i32, {experts / ranks, ranks + 1}};
  if (in.operands.size() > before && in.operands[before] != rows) return expected("the rows of the part before");
  return rows;
}

Inferred infer_counts(const OpInput& in) {
  LANCET_ASSIGN(const TensorType rows, infer_rows(in, 1));
  return Types{rows};
}

Inferred infer_counts_windows(const OpInput& in) {
  LANCET_ASSIGN(const TensorType rows, infer_rows(in, 2));
  if (in.operands[1] != TensorType{DType::i32, {1}}) return expected("windows i32[1]");
  return Types{rows, in.operands[1]};
}

// Checks the operands: the buffer, and filled slots and rows for each part.
Status check_parts(const OpInput& in) {
  const TensorType &buffer = in.operands[0], &filled = in.operands[1], &rows = in.operands[2];
  if (!is_activation(buffer.dtype) || buffer.shape.rank() != 3) return expected("a buffer of rows of f32 or bf16");
  if (!is_filled(filled, filled.shape[0])) return expected("filled i32[E,2]");
  if (rows.dtype != DType::i32 || rows.shape.rank() != 2 || rows.shape[0] * (rows.shape[1] - 1) != filled.shape[0])
    return expected("rows i32[E/W,W+1]");
  if (in.operands.size() % 2 == 0) return expected("filled slots and rows for each part");
  for (std::size_t i = 1; i < in.operands.size(); i += 2)
    if (in.operands[i] != filled || in.operands[i + 1] != rows) return expected("parts of one type");
  return {};
}

Inferred infer_there(const OpInput& in) {
  const TensorType &slots = in.operands[0], &filled = in.operands[1], &rows = in.operands[2];
  LANCET_TRY(check_parts(in));
  if (slots.shape[0] != filled.shape[0]) return expected("slots [E,C,D]");
  return Types{{slots.dtype, {rows.shape[0], (rows.shape[1] - 1) * slots.shape[1], slots.shape[2]}}};
}

Inferred infer_back(const OpInput& in) {
  const TensorType &buffer = in.operands[0], &filled = in.operands[1], &rows = in.operands[2];
  LANCET_TRY(check_parts(in));
  const std::int64_t ranks = rows.shape[1] - 1;
  if (buffer.shape[0] != rows.shape[0] || buffer.shape[1] % ranks) return expected("rows [E/W,W*C,D]");
  return Types{{buffer.dtype, {filled.shape[0], buffer.shape[1] / ranks, buffer.shape[2]}}};
}

void gradient_as(GradientContext& g, std::string_view op) {
  const ir::Instruction& forward = g.instruction();
  std::vector<TensorId> operands = forward.operands;
  operands[0] = g.result_gradient(0);
  g.add(0, g.emit(op, std::move(operands), forward.attributes, ir::Role::dx)[0]);
}
void gradient_there(GradientContext& g) { gradient_as(g, "all_to_all_back"); }
void gradient_back(GradientContext& g) { gradient_as(g, "all_to_all"); }

Work work(const OpInput& in) {
  const TensorType& buffer = in.operands[0];
  return {0, double(expected_rows(in, buffer.shape.rows()) * buffer.shape[2]) * size_of(buffer.dtype)};
}
Work work_counts(const OpInput& in) { return {0, 4.0 * double(in.operands[0].shape[0])}; }

const OpDef table[] = {
    {.name = "all_to_all_counts",
     .required = 1,
     .most = 2,
     .infer = infer_counts,
     .work = work_counts,
     .partition = {{{irregular, irregular}, {irregular}, SplitIn::time}},
     .samples = {{{filled_of(4)}, {{"capacity", 4}, {"tokens", 16}, {"ranks", 1}}}},
     .stream = ir::Stream::expert,
     .kind = Kind::counts,
     .continued = 0},
    {.name = "all_to_all_counts_windows",
     .required = 2,
     .most = 3,
     .infer = infer_counts_windows,
     .work = work_counts,
     .partition = {{{irregular, cumulative, irregular}, {irregular, cumulative}, SplitIn::time}},
     .samples = {{{filled_of(4), i32({1}, Fill::tokens)},
                  {{"capacity", 4}, {"tokens", 16}, {"ranks", 1}, {"vocabulary", 5}}}},
     .stream = ir::Stream::expert,
     .kind = Kind::counts,
     .continued = 0},
    {.name = "all_to_all",
     .required = 3,
     .most = any_number,
     .infer = infer_there,
     .gradient = gradient_there,
     .work = work,
     .partition = {{{irregular, irregular, irregular}, {irregular}, SplitIn::time, {"tokens"}}},
     .samples = {{{f32({4, 4, 24}), filled_of(4), i32({4, 2}, Fill::rows)}, {{"capacity", 4}, {"tokens", 16}}},
                 {{bf16({4, 4, 8}), filled_of(4), i32({4, 2}, Fill::rows)}, {{"capacity", 4}, {"tokens", 16}}}},
     .stream = ir::Stream::expert,
     .kind = Kind::all_to_all,
     .to_experts = true},
    {.name = "all_to_all_back",
     .required = 3,
     .most = any_number,
     .infer = infer_back,
     .gradient = gradient_back,
     .work = work,
     .partition = {{{irregular, irregular, irregular}, {irregular}, SplitIn::time, {"tokens"}}},
     .samples = {{{f32({4, 4, 24}), filled_of(4), i32({4, 2}, Fill::rows)}, {{"capacity", 4}, {"tokens", 16}}}},
     .stream = ir::Stream::expert,
     .kind = Kind::all_to_all},
};

}  // namespace

std::span<const OpDef> all_to_all_ops() { return table; }

}  // namespace lancet::ops
