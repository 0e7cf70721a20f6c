// AdamW (Loshchilov and Hutter), in place. adamw(&w, &m, &v, gradient, schedule [, &master])
//   schedule f32[3]: learning rate, 1 - beta1^t, 1 - beta2^t; f32[4], from clipped_schedule: and the gradient's factor.
//     Where that is NaN, since the norm is not finite, nothing is written: with these weights the fault can be found
//   master f32 like w: where w is bf16, the weights proper, of which w is the rounded copy
#include "ops/update.h"

namespace lancet::ops {
namespace {

Inferred infer(const OpInput& in) { return infer_update(in, 2); }

Work work(const OpInput& in) {
  const double elements = double(in.operands[0].shape.elements());
  const bool master = in.operands.size() > 5;
  return {14 * elements, elements * (master ? 30 : 28)};
}

const Attributes sample_attributes{{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}};

const OpDef table[] = {
    {.name = "adamw",
     .required = 5,
     .most = 6,
     .infer = infer,
     .work = work,
     .writes = {0, 1, 2, 5},
     .samples = {{{{{DType::f32, {9, 7}}},
                   {{DType::f32, {9, 7}}},
                   {{DType::f32, {9, 7}}, Fill::positive},
                   {{DType::f32, {9, 7}}},
                   {{DType::f32, {4}}, Fill::positive}},
                  sample_attributes},
                 {{{{DType::bf16, {40}}},
                   {{DType::f32, {40}}},
                   {{DType::f32, {40}}, Fill::positive},
                   {{DType::f32, {40}}},
                   {{DType::f32, {3}}, Fill::positive},
                   {{DType::f32, {40}}}},
                  sample_attributes}}},
};

}  // namespace

std::span<const OpDef> adamw_ops() { return table; }

}  // namespace lancet::ops
