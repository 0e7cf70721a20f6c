#include <algorithm>
#include <cstdint>

#include "lancet/ops/kernel.h"

namespace lancet::ops {
namespace {

// What one chosen token adds to E * f_e / total_tokens.
double unit(const KernelArgs& args, std::int64_t experts) {
  const double load_tokens = double(args.attributes.integer("load_tokens")),
               total = double(args.attributes.integer("total_tokens"));
  return double(experts) / (load_tokens * total);
}

// The sum of each expert's probabilities.
std::size_t sums_workspace(const KernelArgs& args) {
  return std::size_t(args.operands[0].shape().back()) * sizeof(double);
}

Kernel bind(const KernelArgs& args) {
  const Shape& shape = args.operands[0].shape();
  const std::int64_t tokens = shape.rows(), experts = shape.back();
  const float *probabilities = args.operands[0].as<float>(), *load = args.operands[1].as<float>();  // [T, E], [2, E]
  auto* sums = reinterpret_cast<double*>(args.workspace);
  float* loss = args.results[0].as<float>();
  const double scale = unit(args, experts);
  return [=]() -> Status {
    std::fill_n(sums, experts, 0.0);
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t e = 0; e < experts; ++e) sums[e] += double(probabilities[t * experts + e]);
    double sum = 0;
    for (std::int64_t e = 0; e < experts; ++e) sum += double(load[e]) * sums[e];
    *loss = float(scale * sum);
    return {};
  };
}

Kernel bind_dx(const KernelArgs& args) {
  const std::int64_t experts = args.results[0].elements();
  const float* load = args.operands[0].as<float>();
  float* dprobability = args.results[0].as<float>();
  const double scale = unit(args, experts) * args.attributes.real("coefficient");
  return [=]() -> Status {
    for (std::int64_t e = 0; e < experts; ++e) dprobability[e] = float(scale * double(load[e]));
    return {};
  };
}

const CpuKernel table[] = {{"aux_loss", bind, sums_workspace}, {"aux_loss_dx", bind_dx}};

}  // namespace

std::span<const CpuKernel> aux_loss_cpu() { return table; }

}  // namespace lancet::ops
