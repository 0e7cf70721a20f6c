// Helpers of the op descriptions: checks of operand types, sums of bytes and rows, gradients of weights, and samples.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "lancet/ops/op.h"

namespace lancet::ops {

using Types = std::vector<TensorType>;
using Inferred = Result<Types>;

inline Error expected(std::string_view what) { return internal_error(fmt::format("expected {}", what)); }

inline bool is_activation(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }
inline bool is_vector(const TensorType& type, std::int64_t extent) {
  return type.dtype == DType::f32 && type.shape == Shape{extent};
}

// True for the experts that each token chose, or their slots: i32[T,K] of T tokens with K choices each.
inline bool is_of_tokens(const TensorType& type) {
  return type.dtype == DType::i32 && type.shape.rank() == 2 && type.shape[1] >= 1;
}
// True for the slots of each expert that tokens fill.
inline bool is_filled(const TensorType& type, std::int64_t experts) {
  return type == TensorType{DType::i32, {experts, 2}};
}

// True if `loads` loads count `tokens` tokens: a single one may count those of other parts and ranks, too; of several,
// each counts the attribute load_tokens.
inline bool counts_tokens(const OpInput& in, std::int64_t loads, std::int64_t tokens) {
  return loads == 1 || (loads > 1 && loads * in.attributes.integer("load_tokens", 0) == tokens);
}

inline double bytes_of(const OpInput& in) {
  double total = 0;
  for (const TensorType& type : in.operands) total += double(ir::bytes(type));
  return total;
}

// The work of a pass over operand 0 and tensors like it, which reads or writes `tensors` of them.
inline Work work_per_element(const OpInput& in, double flops, double tensors) {
  const double elements = double(in.operands[0].shape.elements());
  return {flops * elements, tensors * elements * size_of(in.operands[0].dtype)};
}

// The expected number of filled rows of a buffer of `all` rows: the attribute tokens, the tokens of a rank if they
// spread evenly over the experts and none is dropped; `all` without the attribute.
inline std::int64_t expected_rows(const OpInput& in, std::int64_t all) {
  return std::min(all, in.attributes.integer("tokens", all));
}

// Emits an op that computes the gradients of the operands [first, first + count). It gets their accumulators, if any,
// as its last operands.
inline void emit_dw(GradientContext& g, std::string_view op, std::vector<TensorId> operands, Attributes attributes,
                    int first, int count = 1) {
  for (int i = first; i < first + count; ++i)
    if (const TensorId accumulator = g.accumulator(i); accumulator.valid()) operands.push_back(accumulator);
  const auto results = g.emit(op, std::move(operands), std::move(attributes), ir::Role::dw);
  for (int i = 0; i < count; ++i) g.replace(first + i, results[std::size_t(i)]);
}

// A sample by its extents.
inline Sample of(std::string_view extents, Attributes attributes = {}) { return {{}, std::move(attributes), extents}; }

// Operands of samples.
inline SampleOperand f32(Shape shape, Fill fill = Fill::normal) { return {{DType::f32, shape}, fill}; }
inline SampleOperand bf16(Shape shape, Fill fill = Fill::normal) { return {{DType::bf16, shape}, fill}; }
inline SampleOperand i32(Shape shape, Fill fill) { return {{DType::i32, shape}, fill}; }
inline SampleOperand expert_of(std::int64_t tokens, std::int64_t choices = 1) {
  return {{DType::i32, {tokens, choices}}, Fill::expert};
}
inline SampleOperand skipped_of(std::int64_t tokens, std::int64_t choices) {
  return {{DType::i32, {tokens, choices}}, Fill::skipped};
}
inline SampleOperand slot_of(std::int64_t tokens, std::int64_t choices = 1) {
  return {{DType::i32, {tokens, choices}}, Fill::slot};
}
inline SampleOperand weight_of(std::int64_t tokens, std::int64_t choices = 1) {
  return {{DType::f32, {tokens, choices}}, Fill::weight};
}
inline SampleOperand filled_of(std::int64_t experts) { return {{DType::i32, {experts, 2}}, Fill::rows}; }

}  // namespace lancet::ops
