// BoundStep: a plan bound to memory, with its inputs and outputs looked up once.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lancet/runtime/executor.h"

namespace lancet::train {

struct BoundStep {
  std::unique_ptr<runtime::Executor> executor;
  std::span<std::int32_t> tokens, targets;
  std::span<std::int32_t> sequence;  // empty in a plan that draws no random numbers
  const float* loss = nullptr;
  // Null in a plan that updates nothing.
  const float* grad_norm = nullptr;
  float* schedule = nullptr;
  std::vector<const float*> aux;             // per MoE layer: auxiliary loss, router entropy
  std::vector<std::span<const float>> load;  // per MoE layer: [2L,E]
  std::vector<const float*> z_loss;          // per MoE layer, if its router has one
  std::vector<std::span<const float>> bias;  // per MoE layer, if its experts have them: [E]
  std::vector<const std::int32_t*> rounds;   // per MoE layer that drops nothing: rounds in which its choices are served

  static Result<BoundStep> bind(const ir::Plan& plan, runtime::TensorStore& store,
                                const runtime::ExecutorOptions& options);
};

}  // namespace lancet::train
