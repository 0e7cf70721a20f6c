#include "lancet/backend/cpu/parallel.h"
#include "lancet/ops/kernel.h"
#include "routing.h"

namespace lancet::ops {
namespace {

using backend::cpu::parallel_for;

// Tokens from which a second thread pays: about two thousand exponentials.
std::int64_t grain(std::int64_t experts) { return std::max<std::int64_t>(1, 2048 / experts); }

// One sort key per token (routing::prioritize).
std::size_t order_workspace(const KernelArgs& args) {
  return std::size_t(args.operands[0].shape().rows()) * sizeof(std::uint64_t);
}

template <bool prioritized>
Kernel bind_gate(const KernelArgs& args) {
  const Shape& shape = args.operands[0].shape();
  const ir::RouteLayout layout{shape.rows(), shape.back()};
  const std::int64_t capacity = args.attributes.integer("capacity");
  LANCET_CHECK(layout.tokens < std::int64_t{1} << 24, "a gate counts up to 2^24 tokens, found {}", layout.tokens);
  const float* logits = args.operands[0].as<float>();  // [T, E]
  const std::int32_t* before = nullptr;
  if (args.has(1)) before = ir::RouteLayout{args.operands[1].shape()[0], layout.experts}.end(args.operands[1].data);
  void* route = args.results[0].data;
  float *probabilities = args.results[1].as<float>(), *load = args.results[2].as<float>();
  auto* keys = reinterpret_cast<std::uint64_t*>(args.workspace);
  return [=]() -> Status {
    std::int32_t* expert = layout.expert(route);
    float* weight = layout.weight(route);
    parallel_for(layout.tokens, grain(layout.experts), [=](std::int64_t first, std::int64_t last) {
      for (std::int64_t t = first; t < last; ++t) {
        float* p = probabilities + t * layout.experts;
        expert[t] = routing::softmax(logits + t * layout.experts, p, layout.experts);
        weight[t] = p[expert[t]];
      }
    });
    std::span<std::uint64_t> order;
    if constexpr (prioritized) {
      order = {keys, std::size_t(layout.tokens)};
      routing::prioritize(weight, order);
    }
    routing::assign_slots(layout, route, capacity, order, before, load);
    return {};
  };
}

Kernel bind_dx(const KernelArgs& args) {
  const Shape& shape = args.operands[2].shape();
  const ir::RouteLayout layout{shape.rows(), shape.back()};
  const float* dweight = args.operands[0].as<float>();  // [T]
  const void* route = args.operands[1].data;
  const float* probabilities = args.operands[2].as<float>();  // [T, E]
  const float* shared = args.has(3) ? args.operands[3].as<float>() : nullptr;
  float* dlogits = args.results[0].as<float>();
  return [=]() -> Status {
    const std::int32_t* expert = layout.expert(route);
    parallel_for(layout.tokens, grain(layout.experts), [=](std::int64_t first, std::int64_t last) {
      for (std::int64_t t = first; t < last; ++t)
        routing::softmax_backward(probabilities + t * layout.experts, expert[t], dweight[t], shared,
                                  dlogits + t * layout.experts, layout.experts);
    });
    return {};
  };
}

const CpuKernel table[] = {
    {"switch_gate", bind_gate<false>},
    {"batch_prioritized_gate", bind_gate<true>, order_workspace},
    {"gate_dx", bind_dx},
};

}  // namespace

std::span<const CpuKernel> gate_cpu() { return table; }

}  // namespace lancet::ops
