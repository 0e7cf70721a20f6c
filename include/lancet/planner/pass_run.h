// The record of one pass of the pipeline that made a plan.
#pragma once
#include <cstddef>
#include <string>

namespace lancet::planner {

struct PassRun {
  std::string name;
  double ms = 0;                 // duration of the pass
  std::size_t instructions = 0;  // of its result
  std::string text;              // its result, printed; empty unless PlanRequest::keep_texts
};

}  // namespace lancet::planner
