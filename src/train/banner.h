// Composes the lines that a run logs before its first step.
#pragma once
#include <cstdint>
#include <string>

#include "lancet/comm/network_check.h"
#include "lancet/config/config.h"
#include "lancet/ir/plan.h"
#include "lancet/planner/planner.h"
#include "lancet/runtime/accelerator.h"

namespace lancet::train {

// Bytes of one rank.
struct MemoryPlan {
  std::int64_t process = 0;  // resident before the first allocation: code, libraries, MPI
  std::int64_t parameters = 0, state = 0, arena = 0, workspace = 0, staging = 0;  // staging: for saving
  std::int64_t total() const { return process + parameters + state + arena + workspace + staging; }
};

// The text of memory.json: an object of the parts that the banner lists, in bytes.
std::string memory_json(const MemoryPlan& memory);

struct Peak {
  double flops = 0;         // of one rank, per second; 0: not known
  bool configured = false;  // set by log.peak_tflops; else measured
};

std::string banner(const config::Config& config, int ranks, int threads, const comm::NetworkReport& network,
                   const MemoryPlan& memory, const Peak& peak, runtime::Accelerator* accelerator);

// Describes the plan that runs: policy, prediction, schedule, and why it differs from the requested one. Without
// policies in the report, the schedule is left out.
std::string describe_plan(const ir::Plan& plan, const planner::PlanReport& report);

// Flops of a step that MFU counts: products and attention, forward and backward, with the causal half of the attention,
// and experts on the rows that they get if no token is dropped. dense: all but the experts' flops; experts: theirs.
struct ProductFlops {
  double dense = 0, experts = 0;
};
ProductFlops product_flops(const ir::Program& program);

}  // namespace lancet::train
