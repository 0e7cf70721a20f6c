#include <algorithm>
#include <cstdint>

#include "lancet/ops/kernel.h"
#include "math.h"

namespace lancet::ops {
namespace {

// E * f_e / total_tokens per choice of e: E / (load_tokens * choices * total_tokens).
double unit(const KernelArgs& args, std::int64_t experts) {
  const double of_load = args.attributes.real("load_tokens") * args.attributes.real("choices", 1),
               total = double(args.attributes.integer("total_tokens"));
  return double(experts) / (of_load * total);
}

// Two sums per expert, of p and of -p log p.
std::size_t sums_workspace(const KernelArgs& args) {
  return std::size_t(args.operands[0].shape().back()) * 2 * sizeof(double);
}

Kernel bind(const KernelArgs& args) {
  const Shape& shape = args.operands[0].shape();
  const std::int64_t tokens = shape.rows(), experts = shape.back(), loads = args.operands[1].shape()[0] / 2;
  const float *probabilities = args.operands[0].as<float>(), *load = args.operands[1].as<float>();  // [T, E], [2L, E]
  auto* sums = reinterpret_cast<double*>(args.workspace);
  double* surprises = sums + experts;
  float* shares = args.results[0].as<float>();  // loss, entropy
  const double scale = unit(args, experts), total = double(args.attributes.integer("total_tokens"));
  return [=]() -> Status {
    double sum = 0, entropy = 0;
    for (std::int64_t l = 0; l < loads; ++l) {
      std::fill_n(sums, 2 * experts, 0.0);
      for (std::int64_t t = l * tokens / loads; t < (l + 1) * tokens / loads; ++t)
        for (std::int64_t e = 0; e < experts; ++e) {
          const float p = probabilities[t * experts + e];
          sums[e] += double(p);
          surprises[e] += double(surprise(p));
        }
      for (std::int64_t e = 0; e < experts; ++e) {
        sum += double(load[2 * l * experts + e]) * sums[e];
        entropy += surprises[e];
      }
    }
    shares[0] = float(scale * sum);
    shares[1] = float(entropy / total);
    return {};
  };
}

Kernel bind_dx(const KernelArgs& args) {
  const std::int64_t experts = args.operands[0].shape()[1], loads = args.operands[0].shape()[0] / 2;
  const float* load = args.operands[0].as<float>();
  float* dprobability = args.results[0].as<float>();
  const double scale = unit(args, experts) * args.attributes.real("coefficient");
  return [=]() -> Status {
    for (std::int64_t l = 0; l < loads; ++l)
      for (std::int64_t e = 0; e < experts; ++e)
        dprobability[l * experts + e] = float(scale * double(load[2 * l * experts + e]));
    return {};
  };
}

Kernel bind_mean(const KernelArgs& args) {
  const std::int64_t experts = args.results[0].shape()[1];
  float *sum = args.operands[0].as<float>(), *mean = args.results[0].as<float>();  // [2,E]: all choices, kept ones
  const float* load = args.operands[1].as<float>();
  return [=]() -> Status {
    double of_sum = 0, of_load = 0;
    for (std::int64_t i = 0; i < 2 * experts; ++i) sum[i] += load[i];
    for (std::int64_t e = 0; e < experts; ++e) of_sum += double(sum[e]), of_load += double(load[e]);
    const double share = of_load / of_sum;
    for (std::int64_t i = 0; i < 2 * experts; ++i) mean[i] = float(share * double(sum[i]));
    return {};
  };
}

const CpuKernel table[] = {{"aux_loss", bind, sums_workspace}, {"aux_loss_dx", bind_dx}, {"mean_load", bind_mean}};

}  // namespace

std::span<const CpuKernel> aux_loss_cpu() { return table; }

}  // namespace lancet::ops
