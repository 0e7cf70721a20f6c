// What executors share: a plan's tensors as addresses, its lanes as lists of instructions, its errors by name.
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

struct LaneWait {
  std::uint8_t lane;
  std::int32_t target;  // instructions of that lane that must have ended
};

struct LaneStep {
  std::int32_t instruction;
  std::vector<LaneWait> waits;  // on other lanes
};

using Lanes = std::array<std::vector<LaneStep>, ir::lane_count>;
Lanes lanes_of(const ir::Plan& plan);

// All lanes in turn on this thread, each as far as its waits allow: the same order on all ranks. run(step): a Status.
template <class Run>
Status walk_alone(const Lanes& lanes, const Run& run) {
  std::array<std::size_t, ir::lane_count> done{};
  auto ready = [&](const LaneStep& step) {
    return std::all_of(step.waits.begin(), step.waits.end(),
                       [&](const LaneWait& wait) { return done[wait.lane] >= static_cast<std::size_t>(wait.target); });
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t lane = 0; lane < ir::lane_count; ++lane)
      for (; done[lane] < lanes[lane].size() && ready(lanes[lane][done[lane]]); ++done[lane], moved = true)
        LANCET_TRY(run(lanes[lane][done[lane]]));
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

// "lane reduce: [12] all_reduce at h.0.ln_1.weight: ...", as plan.ir numbers the instructions.
Error error_at(const ir::Plan& plan, std::int32_t instruction, const Error& error);

// Lane-wise scratch: as large as the most demanding kernel of the lane asks. find(op) gives a kernel or null.
// addresses: gives arguments(instruction). place: "on the CPU", for the error where it gives none.
template <class Arguments, class Find>
Result<std::array<std::size_t, ir::lane_count>> workspace_bytes(const ir::Plan& plan, const Arguments& addresses,
                                                                const Find& find, const std::string& place) {
  std::array<std::size_t, ir::lane_count> bytes{};
  for (const ir::Instruction& instruction : plan.program.instructions) {
    const auto* kernel = find(instruction.op);
    if (!kernel) return internal_error("op " + instruction.op + " has no kernel " + place);
    auto& most = bytes[static_cast<std::size_t>(instruction.lane)];
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
Result<std::optional<NonFinite>> search_non_finite(const ir::Plan& plan, const Lanes& lanes, const Addresses& addresses,
                                                   SingleSteps& steps);

}  // namespace lancet::runtime
