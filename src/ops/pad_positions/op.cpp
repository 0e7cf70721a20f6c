// Between the S tokens of a sequence and its S' positions, of which those after the tokens are padding. Where ranks
// split sequences, S' is a multiple of their number, so that all have shards of one shape. Attributes: sequence S,
// positions S', and axis, the dimension of the tokens: 1, of [B,S,...], or 0, of [B*S,K].
//   pad_positions(x) {sequence, positions, axis} -> x with zeros at the padding, [B,S,...] -> [B,S',...]
//   cut_positions(x) {sequence, positions, axis} -> x without the padding, its gradient
//   pad_targets(targets i32[B,S]) {sequence, positions} -> i32[B,S'], with -1, a target that the loss does not count
//   pad_choices(weight f32[B*S,K], expert i32[B*S,K], slot i32[B*S,K]) {sequence, positions} -> the same of B*S'
//       tokens. Padding has no slot, as a dropped token, so that it goes to no expert.
// Padding never enters a result of tokens. Attention looks back only, and padding comes last; whatever else works on
// positions computes each by itself, but for sums over positions, which are gradients of weights. Those are not
// concerned either, since the gradient of all padding is zero: the loss and the experts give it none.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

// The shape whose dimension `axis` has the positions of sequences instead of their tokens (pads), or the reverse.
Result<Shape> resized(const OpInput& in, Shape shape, std::int64_t axis, bool pads) {
  const std::int64_t sequence = in.attributes.integer("sequence"), positions = in.attributes.integer("positions");
  if (sequence < 1 || positions < sequence) return expected("at least as many positions as tokens of a sequence");
  const std::int64_t from = pads ? sequence : positions, to = pads ? positions : sequence;
  std::int64_t extent = 0;
  if (axis < 0 || axis >= shape.rank() || shape[int(axis)] % from != 0 ||
      __builtin_mul_overflow(shape[int(axis)] / from, to, &extent))
    return expected("whole sequences along the axis");
  shape.set(int(axis), extent);
  return shape;
}

Inferred infer_activation(const OpInput& in, bool pads) {
  const TensorType& x = in.operands[0];
  if (!is_activation(x.dtype)) return expected("a tensor of f32 or bf16");
  LANCET_ASSIGN(const Shape shape, resized(in, x.shape, in.attributes.integer("axis", 1), pads));
  return Types{{x.dtype, shape}};
}
Inferred infer_pad(const OpInput& in) { return infer_activation(in, true); }
Inferred infer_cut(const OpInput& in) { return infer_activation(in, false); }

Inferred infer_targets(const OpInput& in) {
  const TensorType& targets = in.operands[0];
  if (targets.dtype != DType::i32 || targets.shape.rank() != 2) return expected("targets i32[B,S]");
  LANCET_ASSIGN(const Shape shape, resized(in, targets.shape, 1, true));
  return Types{{DType::i32, shape}};
}

Inferred infer_choices(const OpInput& in) {
  const TensorType &weight = in.operands[0], &expert = in.operands[1];
  if (!is_of_tokens(expert) || in.operands[2] != expert) return expected("expert and slot i32[B*S,K]");
  if (weight != TensorType{DType::f32, expert.shape}) return expected("weight f32[B*S,K]");
  LANCET_ASSIGN(const Shape shape, resized(in, expert.shape, 0, true));
  return Types{{DType::f32, shape}, {DType::i32, shape}, {DType::i32, shape}};
}

void gradient_of_pad(GradientContext& g) {
  g.add(0, g.emit("cut_positions", {g.result_gradient(0)}, g.instruction().attributes, ir::Role::dx)[0]);
}
void gradient_of_cut(GradientContext& g) {
  g.add(0, g.emit("pad_positions", {g.result_gradient(0)}, g.instruction().attributes, ir::Role::dx)[0]);
}
void gradient_of_choices(GradientContext& g) {
  if (!g.needs_gradient(0)) return;
  Attributes attributes = g.instruction().attributes;
  attributes.set("axis", std::int64_t(0));
  g.add(0, g.emit("cut_positions", {g.result_gradient(0)}, std::move(attributes), ir::Role::dx)[0]);
}

// Tokens are read and written, padding is written alone.
Work work_pad(const OpInput& in) {
  const double tokens = bytes_of(in);
  return {0, tokens + tokens * double(in.attributes.integer("positions")) / double(in.attributes.integer("sequence"))};
}
Work work_cut(const OpInput& in) {
  return {0, 2 * bytes_of(in) * double(in.attributes.integer("sequence")) / double(in.attributes.integer("positions"))};
}

Attributes of(std::int64_t sequence, std::int64_t positions, std::int64_t axis = 1) {
  return {{"sequence", sequence}, {"positions", positions}, {"axis", axis}};
}
Sample targets_of(std::int64_t batch, std::int64_t sequence, std::int64_t positions) {
  return {{i32({batch, sequence}, Fill::tokens)}, {{"sequence", sequence}, {"positions", positions}}};
}
Sample choices_of(std::int64_t tokens, std::int64_t choices, std::int64_t sequence, std::int64_t positions,
                  std::int64_t groups = 1) {
  return {{weight_of(tokens, choices), expert_of(tokens, choices), slot_of(tokens, choices)},
          {{"capacity", tokens / 4 / groups},
           {"groups", groups},
           {"experts", 4},
           {"sequence", sequence},
           {"positions", positions}}};
}

const OpDef table[] = {
    {.name = "pad_positions",
     .required = 1,
     .infer = infer_pad,
     .gradient = gradient_of_pad,
     .work = work_pad,
     .partition = {{{0}, {0}}, {{last}, {last}, SplitIn::space}, {{partial}, {partial}, SplitIn::space}},
     .samples = {{{f32({4, 5, 17})}, of(5, 8)},
                 {{f32({2, 3, 24})}, of(3, 4)},
                 {{bf16({3, 7, 13})}, of(7, 9)},
                 {{f32({12, 3})}, of(3, 5, 0)}},
     .again = Again{}},
    {.name = "cut_positions",
     .required = 1,
     .infer = infer_cut,
     .gradient = gradient_of_cut,
     .work = work_cut,
     .partition = {{{0}, {0}}, {{last}, {last}, SplitIn::space}, {{partial}, {partial}, SplitIn::space}},
     .samples = {{{f32({4, 8, 17})}, of(5, 8)},
                 {{f32({2, 4, 24})}, of(3, 4)},
                 {{bf16({3, 9, 13})}, of(7, 9)},
                 {{f32({20, 3})}, of(3, 5, 0)}},
     .again = Again{}},
    {.name = "pad_targets",
     .required = 1,
     .infer = infer_targets,
     .partition = {{{0}, {0}}},
     .samples = {targets_of(4, 5, 8), targets_of(3, 7, 9)},
     .passes_ids = true},
    {.name = "pad_choices",
     .required = 3,
     .infer = infer_choices,
     .gradient = gradient_of_choices,
     .work = work_pad,
     .partition = {{{0, 0, 0}, {0, 0, 0}}},
     .samples = {choices_of(16, 1, 4, 6), choices_of(12, 2, 3, 4), choices_of(20, 3, 5, 8), choices_of(24, 2, 3, 4, 4)},
     .ragged = Ragged{{}, {}, -1, 2}},
};

}  // namespace

std::span<const OpDef> pad_positions_ops() { return table; }

}  // namespace lancet::ops
