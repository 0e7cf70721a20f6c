#include <algorithm>
#include <numeric>

#include "choice_gradient.h"
#include "choose.h"
#include "lancet/backend/cpu/parallel.h"
#include "lancet/ops/kernel.h"

namespace lancet::ops {
namespace {

using backend::cpu::parallel_for;

// Tokens from which a second thread pays: about two thousand exponentials.
std::int64_t grain(std::int64_t experts) { return std::max<std::int64_t>(1, 2048 / experts); }

Kernel bind(const KernelArgs& args) {
  const Shape& shape = args.operands[0].shape();
  const std::int64_t tokens = shape.rows(), experts = shape.back(), choices = args.attributes.integer("k");
  const bool normalized = args.attributes.integer("normalize", 0) != 0;
  const float* logits = args.operands[0].as<float>();  // [T, E]
  auto* expert = args.results[0].as<std::int32_t>();   // [T, K]
  auto* weight = args.results[1].as<float>();          // [T, K]
  auto* scores = args.results[2].as<float>();          // [T, E]
  return [=]() -> Status {
    parallel_for(tokens, grain(experts), [=](std::int64_t first, std::int64_t last) {
      for (std::int64_t t = first; t < last; ++t) {
        routing::choose(logits + t * experts, scores + t * experts, experts, choices, expert + t * choices);
        routing::softmax(logits + t * experts, expert[t * choices], scores + t * experts, experts);
        routing::weigh(scores + t * experts, expert + t * choices, choices, normalized, weight + t * choices);
      }
    });
    return {};
  };
}

Kernel bind_every(const KernelArgs& args) {
  const std::int64_t tokens = args.operands[0].shape().rows(), experts = args.operands[0].shape().back();
  const float* logits = args.operands[0].as<float>();  // [T, E]
  auto* expert = args.results[0].as<std::int32_t>();   // [T, E]
  auto* weight = args.results[1].as<float>();          // [T, E]
  auto* scores = args.results[2].as<float>();          // [T, E]
  return [=]() -> Status {
    parallel_for(tokens, grain(experts), [=](std::int64_t first, std::int64_t last) {
      for (std::int64_t t = first; t < last; ++t) {
        std::int32_t* own = expert + t * experts;
        routing::choose(logits + t * experts, scores + t * experts, experts, 1, own);
        routing::softmax(logits + t * experts, own[0], scores + t * experts, experts);
        std::copy_n(scores + t * experts, experts, weight + t * experts);
        std::iota(own, own + experts, 0);
      }
    });
    return {};
  };
}

Kernel bind_dx(const KernelArgs& args) {
  const ChoiceGradientArgs of = choice_gradient_args(args);
  return [of]() -> Status {
    parallel_for(of.tokens, grain(of.experts), [of](std::int64_t first, std::int64_t last) {
      for (std::int64_t t = first; t < last; ++t) {
        const float* p = of.of_experts + t * of.experts;
        const auto chosen = routing::chosen_gradient(of.expert + t * of.choices, of.dweight + t * of.choices,
                                                     of.choices, of.normalized, p);
        routing::softmax_backward(p, chosen, of.dscores_of(t), of.dlogits + t * of.experts, of.experts);
      }
    });
    return {};
  };
}

const CpuKernel table[] = {{"top_k", bind}, {"every_expert", bind_every}, {"top_k_dx", bind_dx}};

}  // namespace

std::span<const CpuKernel> top_k_cpu() { return table; }

}  // namespace lancet::ops
