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
  const routing::Decision gate = routing::decision_of(args);
  LANCET_CHECK(gate.tokens < std::int64_t{1} << 24, "a gate counts up to 2^24 tokens, found {}", gate.tokens);
  const float* logits = args.operands[0].as<float>();  // [T, E]
  auto* keys = reinterpret_cast<std::uint64_t*>(args.workspace);
  return [=]() -> Status {
    parallel_for(gate.tokens, grain(gate.experts), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t t = first; t < last; ++t) {
        float* p = gate.probabilities + t * gate.experts;
        gate.expert[t] = routing::softmax(logits + t * gate.experts, p, gate.experts);
        gate.weight[t] = p[gate.expert[t]];
      }
    });
    std::span<std::uint64_t> order;
    if constexpr (prioritized) {
      order = {keys, std::size_t(gate.tokens)};
      routing::prioritize(gate.weight, order);
    }
    routing::assign_slots(gate, order);
    return {};
  };
}

Kernel bind_dx(const KernelArgs& args) {
  const std::int64_t tokens = args.operands[2].shape().rows(), experts = args.operands[2].shape().back();
  const float* dweight = args.operands[0].as<float>();  // [T]
  const std::int32_t* expert = args.operands[1].as<std::int32_t>();
  const float* probabilities = args.operands[2].as<float>();                   // [T, E]
  const float* shared = args.has(3) ? args.operands[3].as<float>() : nullptr;  // [L, E]
  const std::int64_t of_load = shared ? tokens / (args.operands[3].elements() / experts) : tokens;
  float* dlogits = args.results[0].as<float>();
  return [=]() -> Status {
    parallel_for(tokens, grain(experts), [=](std::int64_t first, std::int64_t last) {
      for (std::int64_t t = first; t < last; ++t)
        routing::softmax_backward(probabilities + t * experts, expert[t], dweight[t],
                                  shared ? shared + t / of_load * experts : nullptr, dlogits + t * experts, experts);
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
