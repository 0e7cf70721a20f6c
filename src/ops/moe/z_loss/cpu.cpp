#include <algorithm>
#include <cstdint>

#include "lancet/backend/cpu/parallel.h"
#include "lancet/ops/kernel.h"
#include "ops/moe/top_k/choose.h"

namespace lancet::ops {
namespace {

using backend::cpu::parallel_for;

std::int64_t grain(std::int64_t experts) { return std::max<std::int64_t>(1, 2048 / experts); }

// The logarithm of the sum of the exponentials of a token's logits [E]. scores [E] gets their softmax.
float log_sum(const float* logits, std::int64_t experts, float* scores) {
  const auto largest = std::int32_t(std::max_element(logits, logits + experts) - logits);
  for (std::int64_t e = 0; e < experts; ++e) scores[e] = exp_f32(logits[e] - logits[largest]);
  const float sum = routing::ordered_sum(scores, experts);
  for (std::int64_t e = 0; e < experts; ++e) scores[e] /= sum;
  return logits[largest] + log_f32(sum);
}

// A square per token, and the scores of all tokens.
std::size_t workspace(const KernelArgs& args) {
  const Shape& shape = args.operands[0].shape();
  return std::size_t(shape.rows() + shape.elements()) * sizeof(float);
}

Kernel bind(const KernelArgs& args) {
  const std::int64_t tokens = args.operands[0].shape().rows(), experts = args.operands[0].shape().back();
  const float* logits = args.operands[0].as<float>();
  float *squares = reinterpret_cast<float*>(args.workspace), *scores = squares + tokens;
  float* loss = args.results[0].as<float>();
  const double total = double(args.attributes.integer("total_tokens"));
  return [=]() -> Status {
    parallel_for(tokens, grain(experts), [=](std::int64_t first, std::int64_t last) {
      for (std::int64_t t = first; t < last; ++t) {
        const float z = log_sum(logits + t * experts, experts, scores + t * experts);
        squares[t] = z * z;
      }
    });
    double sum = 0;
    for (std::int64_t t = 0; t < tokens; ++t) sum += double(squares[t]);
    loss[0] = float(sum / total);
    return {};
  };
}

Kernel bind_dx(const KernelArgs& args) {
  const std::int64_t tokens = args.operands[0].shape().rows(), experts = args.operands[0].shape().back();
  const float* logits = args.operands[0].as<float>();
  float* dlogits = args.results[0].as<float>();
  const float scale = float(2 * args.attributes.real("coefficient") / double(args.attributes.integer("total_tokens")));
  return [=]() -> Status {
    parallel_for(tokens, grain(experts), [=](std::int64_t first, std::int64_t last) {
      for (std::int64_t t = first; t < last; ++t) {
        float* own = dlogits + t * experts;
        const float z = log_sum(logits + t * experts, experts, own);
        for (std::int64_t e = 0; e < experts; ++e) own[e] *= scale * z;
      }
    });
    return {};
  };
}

const CpuKernel table[] = {{"z_loss", bind, workspace}, {"z_loss_dx", bind_dx}};

}  // namespace

std::span<const CpuKernel> z_loss_cpu() { return table; }

}  // namespace lancet::ops
