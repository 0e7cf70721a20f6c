// What executors share: a plan's tensors as addresses, its streams as lists of instructions, its errors by name.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lancet/ir/plan.h"
#include "lancet/ops/kernel.h"
#include "lancet/runtime/executor.h"
#include "lancet/runtime/tensor_store.h"

namespace lancet::runtime {

struct StreamWait {
  std::uint8_t stream;
  std::int32_t target;  // instructions of that stream that must have ended
};

struct StreamStep {
  std::int32_t instruction;
  std::vector<StreamWait> waits;  // on other streams
};

using Streams = std::array<std::vector<StreamStep>, ir::stream_count>;
Streams streams_of(const ir::Plan& plan);

// All streams in turn on this thread, each as far as its waits allow: the same order on all ranks. run(step): a Status.
template <class Run>
Status walk_alone(const Streams& streams, const Run& run) {
  std::array<std::size_t, ir::stream_count> done{};
  auto ready = [&](const StreamStep& step) {
    return std::all_of(step.waits.begin(), step.waits.end(),
                       [&](const StreamWait& wait) { return done[wait.stream] >= static_cast<std::size_t>(wait.target); });
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t stream = 0; stream < ir::stream_count; ++stream)
      for (; done[stream] < streams[stream].size() && ready(streams[stream][done[stream]]); ++done[stream], moved = true)
        LANCET_TRY(run(streams[stream][done[stream]]));
  }
  return {};
}

// Where a plan's tensors lie: in the store, in the arena, and inputs in a block of their own.
class Addresses {
 public:
  // inputs: as large as input_bytes(plan.program). All outlive this.
  Addresses(const ir::Plan& plan, TensorStore& store, const Memory& arena, const Memory& inputs);
  static std::size_t input_bytes(const ir::Program& program);

  // data: null for a tensor without memory.
  ops::TensorView view(ir::TensorId id) const;
  ops::TensorView input(std::string_view name) const;   // InternalError where there is none
  ops::TensorView output(std::string_view name) const;  // likewise
  // Operands and results.
  ops::KernelArgs arguments(const ir::Instruction& instruction) const;
  const Memory& inputs() const { return inputs_; }

 private:
  const ir::Plan& plan_;
  TensorStore& store_;
  Memory arena_, inputs_;
  std::vector<std::int64_t> input_offsets_;  // by tensor; -1: no input
};

// "stream reduce: [12] all_reduce at h.0.ln_1.weight: ...", as plan.ir numbers the instructions.
Error error_at(const ir::Plan& plan, std::int32_t instruction, const Error& error);

// Stream-wise scratch: as large as the most demanding kernel of the stream asks. find(op) gives a kernel or null.
// addresses: gives arguments(instruction). place: "on the CPU", for the error where it gives none.
template <class Arguments, class Find>
Result<std::array<std::size_t, ir::stream_count>> workspace_bytes(const ir::Plan& plan, const Arguments& addresses,
                                                                const Find& find, const std::string& place) {
  std::array<std::size_t, ir::stream_count> bytes{};
  for (const ir::Instruction& instruction : plan.program.instructions) {
    const auto* kernel = find(instruction.op);
    if (!kernel) return internal_error("op " + instruction.op + " has no kernel " + place);
    auto& most = bytes[static_cast<std::size_t>(instruction.stream)];
    if (kernel->workspace) most = std::max(most, kernel->workspace(addresses.arguments(instruction)));
  }
  return bytes;
}

// How an executor runs instructions one at a time, for the search below.
class SingleSteps {
 public:
  virtual ~SingleSteps() = default;
  virtual Status zero(const ops::TensorView& view) = 0;
  virtual Status run(std::int32_t instruction) = 0;  // to its end
  // The tensor where the host can read it, until the next call.
  virtual Result<ops::TensorView> host_view(const ops::TensorView& view) = 0;
};
// Executor::find_non_finite.
Result<std::optional<NonFinite>> search_non_finite(const ir::Plan& plan, const Streams& streams, const Addresses& addresses,
                                                   SingleSteps& steps);

}  // namespace lancet::runtime
