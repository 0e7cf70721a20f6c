#include <algorithm>

#include "choose.h"
#include "lancet/backend/cpu/parallel.h"
#include "lancet/ops/kernel.h"
#include "ops/moe/top_k/choice_gradient.h"

namespace lancet::ops {
namespace {

using backend::cpu::parallel_for;

// Tokens from which a second thread pays: about two thousand exponentials.
std::int64_t grain(std::int64_t experts) { return std::max<std::int64_t>(1, 2048 / experts); }

Kernel bind(const KernelArgs& args) {
  const Shape& shape = args.operands[0].shape();
  const std::int64_t tokens = shape.rows(), groups = args.attributes.integer("expert_groups", 1);
  const routing::SigmoidChoice choice{.experts = shape.back(),
                                      .choices = args.attributes.integer("k"),
                                      .groups = groups,
                                      .open = args.attributes.integer("top_groups", groups),
                                      .normalized = args.attributes.integer("normalize", 0) != 0,
                                      .scale = float(args.attributes.real("scale", 1)),
                                      .bias = args.has(1) ? args.operands[1].as<float>() : nullptr};
  const float* logits = args.operands[0].as<float>();  // [T, E]
  auto* expert = args.results[0].as<std::int32_t>();   // [T, K]
  auto* weight = args.results[1].as<float>();          // [T, K]
  auto* scores = args.results[2].as<float>();          // [T, E]
  return [=]() -> Status {
    parallel_for(tokens, grain(choice.experts), [=](std::int64_t first, std::int64_t last) {
      for (std::int64_t t = first; t < last; ++t)
        routing::route_sigmoid(choice, logits + t * choice.experts, expert + t * choice.choices,
                               weight + t * choice.choices, scores + t * choice.experts);
    });
    return {};
  };
}

Kernel bind_dx(const KernelArgs& args) {
  const ChoiceGradientArgs of = choice_gradient_args(args);
  const float scale = float(args.attributes.real("scale", 1));
  return [=]() -> Status {
    parallel_for(of.tokens, grain(of.experts), [=](std::int64_t first, std::int64_t last) {
      for (std::int64_t t = first; t < last; ++t) {
        const float* own = of.of_experts + t * of.experts;
        const auto chosen = routing::chosen_sigmoids(of.expert + t * of.choices, of.dweight + t * of.choices,
                                                     of.choices, of.normalized, scale, own);
        routing::sigmoid_backward(chosen, own, of.dscores_of(t), of.dlogits + t * of.experts, of.experts);
      }
    });
    return {};
  };
}

const CpuKernel table[] = {{"sigmoid_top_k", bind}, {"sigmoid_top_k_dx", bind_dx}};

}  // namespace

std::span<const CpuKernel> sigmoid_top_k_cpu() { return table; }

}  // namespace lancet::ops
