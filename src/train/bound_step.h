// BoundStep: a plan bound to memory, with its inputs and outputs looked up once.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lancet/runtime/executor.h"
#include "layer_outputs.h"

namespace lancet::train {

// The inputs and outputs of a micro batch, in the memory of the executor.
struct BoundMicroBatch {
  std::span<std::int32_t> tokens, targets;
  std::span<std::int32_t> sequence;  // empty in a plan that draws no random numbers
  const float* loss = nullptr;
  LayerOutputs layers;
};

struct BoundStep {
  std::unique_ptr<runtime::Executor> executor;
  std::vector<BoundMicroBatch> micro_batches;  // at least one
  std::vector<std::int32_t> unread;            // tokens or targets that the plan does not read
  // Null in a plan that updates nothing.
  const float* grad_norm = nullptr;
  float* schedule = nullptr;
  float* schedule_before = nullptr;  // of the step before, if the plan lists its end
  bool crosses_steps = false;
  bool norm_crosses = false;  // the norm of a step is known when the next one has run

  static Result<BoundStep> bind(const ir::Plan& plan, runtime::TensorStore& store,
                                const runtime::ExecutorOptions& options);
};

}  // namespace lancet::train
