// What `lancet plan` prints, as text.
#pragma once
#include <string>

#include "lancet/planning/planned_step.h"

namespace lancet::cli {

std::string policy_table(const planner::PlanReport& report);   // a row a policy
std::string schedule_text(const planning::PlannedStep& planned);  // the chosen plan: ranges, size, floor
std::string cover_table(const ir::Plan& plan);                 // what lies under which all-to-all
std::string timeline_chart(const ir::Plan& plan);              // the predicted step, a row a stream
std::string explanation(const planning::PlannedStep& planned);    // for whoever sees this for the first time

}  // namespace lancet::cli
