// The operands of the ops whose types infer_choice_dx gives, for their kernels on all devices.
#pragma once
#include "lancet/ops/kernel.h"

namespace lancet::ops {

struct ChoiceGradientArgs {
  std::int64_t tokens, experts, choices;
  bool normalized;
  const std::int32_t* expert;                   // [T, K]
  const float *dweight, *of_experts, *dscores;  // [T, K], [T, E], [L, E] or null
  std::int64_t load_tokens;                     // tokens that share a row of dscores
  float* dlogits;                               // [T, E]
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
          args.has(3) ? tokens / (args.operands[3].elements() / experts) : tokens,
          args.results[0].as<float>()};
}

}  // namespace lancet::ops
