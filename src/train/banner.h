// What a run says of itself before its first step.
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
  std::int64_t process = 0;  // resident before anything was allocated: code, libraries, MPI
  std::int64_t parameters = 0, state = 0, arena = 0, workspace = 0, staging = 0;  // staging: for saving
  std::int64_t total() const { return process + parameters + state + arena + workspace + staging; }
};

struct Peak {
  double flops = 0;         // of one rank, per second; 0: not known
  bool configured = false;  // by log.peak_tflops, else measured
};

std::string banner(const config::Config& config, int ranks, int threads, const comm::NetworkReport& wire,
                   const MemoryPlan& memory, const Peak& peak, runtime::Accelerator* accelerator);

// The plan that runs: policy, prediction, schedule, and why it is another than the one asked for. A report without
// policies says nothing of them.
std::string describe_plan(const ir::Plan& plan, const planner::PlanReport& report);

// Flops of the products and the attention of a step, which MFU counts: forward and backward, the causal half of the
// attention, experts on the rows that they get where none is dropped. dense: without the experts; experts: theirs.
struct ProductFlops {
  double dense = 0, experts = 0;
};
ProductFlops product_flops(const ir::Program& program);

}  // namespace lancet::train
