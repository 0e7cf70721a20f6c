// The operands of the ops that check_choice_dx describes, for their kernels on all devices.
#pragma once
#include "lancet/base/math.h"
#include "lancet/ops/kernel.h"

namespace lancet::ops {

struct ChoiceGradientArgs {
  std::int64_t tokens, experts, choices;
  bool normalized;
  const std::int32_t* expert;                   // [T, K]
  const float *dweight, *of_experts, *dscores;  // [T, K], [T, E], [L, E] or null
  std::int64_t first, load_tokens;              // the part's first token among all parts'; tokens of a row of dscores
  float* dlogits;                               // [T, E]

  // The row [E] of dscores for token t; null if there is none.
  LANCET_HD const float* dscores_of(std::int64_t t) const {
    return dscores ? dscores + std::int32_t(first + t) / std::int32_t(load_tokens) * experts : nullptr;
  }
};

inline ChoiceGradientArgs choice_gradient_args(const KernelArgs& args) {
  const std::int64_t tokens = args.operands[2].shape().rows(), experts = args.operands[2].shape().back();
  return {tokens,
          experts,
          args.operands[1].shape()[1],
          args.attributes.integer("normalize", 0) != 0,
          args.operands[1].as<std::int32_t>(),
          args.operands[0].as<float>(),
          args.operands[2].as<float>(),
          args.has(3) ? args.operands[3].as<float>() : nullptr,
          args.attributes.integer("part", 0) * tokens,
          args.attributes.integer("load_tokens", tokens * args.attributes.integer("parts", 1)),
          args.results[0].as<float>()};
}

}  // namespace lancet::ops
