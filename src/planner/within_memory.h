// Plans a step within a memory: makes values again in the backward pass as far as the memory asks for it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ir/plan.h"
#include "lancet/passes/passes.h"
#include "lancet/planner/planner.h"
#include "steps.h"

namespace lancet::planner {

// Which values a step makes again in the backward pass so that it fits a memory (passes/passes.h).

struct RecomputeChoice {
  std::vector<bool> chosen;      // per instruction of the step
  std::int64_t arena_bytes = 0;  // of the step with these made again, as it will run
  bool is_least = false;         // no other choice of the chain needs less
  bool any() const;
};

// How a step runs, as far as its memory depends on that.
struct StepOrder {
  std::function<std::int64_t(const ir::Program&)> arena_bytes;
  int in_flight = 1;  // the most micro batches whose activations are kept at once
};
StepOrder in_turns();

// The choices of a step, from none on, each with one more value made again than the one before.
class RecomputeChoices {
 public:
  // ms: the time of each instruction, or any measure of it. step: one micro batch, as for passes::Recomputation, which
  // it has to outlive.
  RecomputeChoices(const ir::Program& step, std::vector<double> ms, StepOrder order = in_turns());

  // The first choice whose step has an arena of at most that; if there is none, the one that needs least.
  RecomputeChoice within(std::int64_t arena_bytes);
  // The arena of the step if nothing is made again.
  std::int64_t all_kept_bytes() { return choice_of(0).arena_bytes; }
  // The step with this choice: its Program.
  ir::Program program(const RecomputeChoice& choice) const { return values_.run(choice.chosen); }

 private:
  struct Link {
    std::size_t added = 0;  // an instruction; of the first link none
    std::int64_t peak_bytes = 0;
    std::optional<RecomputeChoice> choice = {};  // once its arena is known
  };
  struct Live {
    std::int64_t peak = 0;
    double above = 0;  // bytes above a level, added up over the instructions
  };

  Live live(const std::vector<bool>& chosen, std::int64_t level) const;
  bool add_link();
  const RecomputeChoice& choice_of(std::size_t link);

  const ir::Program& step_;
  const passes::Recomputation values_;
  std::vector<double> ms_;
  const StepOrder order_;
  std::vector<std::int32_t> block_;                    // by tensor: its memory in the arena, or -1
  std::vector<std::int64_t> bytes_;                    // by tensor
  std::vector<bool> chosen_;                           // up to the last link
  std::vector<std::pair<double, std::size_t>> queue_;  // a heap of candidates by what they were worth
  std::vector<Link> links_;
};

// A measure of the time of each instruction, from its work, where no costs are known.
std::vector<double> work_times(const ir::Program& program);
// By the costs; work_times() if there are none, or if they lack an op.
std::vector<double> times_of(const ir::Program& step, const cost::Costs* costs);

// Makes the plan of a rank's step by the policy of the request.
using PlanMaker = std::function<Result<ir::Plan>(ir::Program step, const PlanRequest&, Pipeline, PlanReport*)>;

// A plan whose named tensors and arena take at most request.budget() bytes, or the smallest that was found where only
// the device has less. step: after all passes that change what is computed; pipeline: those passes. Config error: no
// plan is within request.memory_limit; the message has the smallest limit.
Result<ir::Plan> plan_within_memory(const ir::Program& step, const PlanRequest& request, const Pipeline& pipeline,
                                    const PlanMaker& make, PlanReport* report);

// The error that no plan is within request.memory_limit.
Error memory_limit_too_small(std::int64_t least_bytes, const PlanRequest& request);

}  // namespace lancet::planner
