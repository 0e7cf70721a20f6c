// The policies, one row each: the cuts of a training step and the passes that apply and order them. Adding a policy is
// adding a row.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "lancet/schedule/overlap.h"

namespace lancet::planner {

struct SchedulePass {
  std::string_view name;
  schedule::Candidate (*run)(const schedule::Step&, const config::Overlap&, schedule::Candidate);
};

struct PolicyTraits {
  bool of_micro_batches = false;  // with one micro batch it is another policy
  bool mixes_parts = false;       // instructions may be in different numbers of parts
  std::string_view alias = {};    // another name of it, which check_policy's message does not list
};

struct Policy {
  std::string_view name;
  std::string_view what;               // one line for --help and reports
  std::vector<std::string_view> cuts;  // of schedule::all_cuts() and pass_cuts(): those that its passes may apply
  std::vector<std::string_view> from;  // policies above this one: the passes start from the fastest of their schedules,
                                       // which the policy contains. Empty: from the step in program order
  std::vector<SchedulePass> passes;
  std::vector<SchedulePass> across = {};  // on the schedule of all micro batches of the plan, if there are several
  std::vector<SchedulePass> border = {};  // on that schedule, where the end of a step may run in the next one
  PolicyTraits is = {};
};

inline constexpr std::string_view sequential = "sequential";

std::span<const Policy> policy_table();            // sequential first
const Policy* find_policy(std::string_view name);  // by name or alias; null if there is none

}  // namespace lancet::planner
