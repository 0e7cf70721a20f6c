// What the pipeline of passes tells of one of them.
#pragma once
#include <cstddef>
#include <string>

namespace lancet::planner {

// One pass of the pipeline that made a plan.
struct PassRun {
  std::string name;
  double ms = 0;                 // that the pass took
  std::size_t instructions = 0;  // of its result
  std::string text;              // its result, printed; empty unless PlanRequest::keep_texts
};

}  // namespace lancet::planner
