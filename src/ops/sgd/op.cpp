// SGD with momentum, in place: v = momentum * v + (gradient + weight_decay * w); w -= lr * v.
// sgd(&w, &v, gradient, clip, schedule [, &master]); clip, schedule and master as in adamw.
#include "ops/describe.h"

namespace lancet::ops {
namespace {

Inferred infer(const OpInput& in) {
  const TensorType& w = in.operands[0];
  const TensorType full{DType::f32, w.shape};
  if (!is_activation(w.dtype)) return expected("w of f32 or bf16");
  if (in.operands[1] != full || in.operands[2] != full) return expected("velocity and gradient f32 like w");
  if (!is_vector(in.operands[3], 2) || !is_vector(in.operands[4], 3)) return expected("clip f32[2] and schedule f32[3]");
  if ((w.dtype == DType::bf16) != (in.operands.size() > 5)) return expected("a master copy exactly where w is bf16");
  if (in.operands.size() > 5 && in.operands[5] != full) return expected("a master copy f32 like w");
  return Types{};
}

Work work(const OpInput& in) {
  const double elements = double(in.operands[0].shape.elements());
  return {5 * elements, elements * (in.operands.size() > 5 ? 22 : 20)};
}

const Attributes sample_attributes{{"momentum", 0.9}, {"weight_decay", 0.01}};

const OpDef table[] = {
    {.name = "sgd",
     .required = 5,
     .most = 6,
     .infer = infer,
     .work = work,
     .writes = {0, 1, 5},
     .samples = {{{{{DType::f32, {9, 7}}},
                   {{DType::f32, {9, 7}}},
                   {{DType::f32, {9, 7}}},
                   {{DType::f32, {2}}, Fill::positive},
                   {{DType::f32, {3}}, Fill::positive}},
                  sample_attributes},
                 {{{{DType::bf16, {40}}},
                   {{DType::f32, {40}}},
                   {{DType::f32, {40}}},
                   {{DType::f32, {2}}, Fill::positive},
                   {{DType::f32, {3}}, Fill::positive},
                   {{DType::f32, {40}}}},
                  sample_attributes}}},
};

}  // namespace

std::span<const OpDef> sgd_ops() { return table; }

}  // namespace lancet::ops
