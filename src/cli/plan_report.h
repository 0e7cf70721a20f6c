// Formats a plan and its predicted times as the text that `lancet plan` prints.
#pragma once
#include <string>
#include <vector>

#include "lancet/report/report.h"
#include "lancet/run/planned_step.h"

namespace lancet::cli {

std::string pass_table(const planner::PlanReport& report);    // a row for each pass that made the plan
std::string policy_table(const planner::PlanReport& report);  // a row for each policy
std::string schedule_text(const run::PlannedStep& planned);   // the chosen plan: ranges, size, lower bound
// What fits the memory limit, what the backward pass recomputes and what that costs; empty if there is neither.
std::string memory_text(const run::PlannedStep& planned);
// The computation that hides each communication, predicted and, in a line below, measured.
std::string cover_table(const std::vector<report::Communication>& communications);
std::string timeline_chart(const ir::Plan& plan);          // the predicted step, a row for each stream
std::string stage_table(const run::PlannedStep& planned);  // a row for each pipeline stage, and the time of each
// All of the above that a script needs, as one JSON object.
std::string plan_json(const run::PlannedStep& planned);

}  // namespace lancet::cli
