// The policies: what each makes of a training step.
#pragma once
#include <functional>
#include <span>
#include <string_view>

#include "candidate.h"
#include "lancet/planner/planner.h"

namespace lancet::planner {

struct Policy {
  std::string_view name;
  std::string_view what;  // one line for --help and reports
  Candidate (*plan)(const Step&, const PartitionLimits&);
};

std::span<const Policy> policy_table();  // sequential first; without auto, which is the best of them

}  // namespace lancet::planner
