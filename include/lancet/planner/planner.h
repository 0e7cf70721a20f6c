// From a forward Program to a Plan: the policies, and the driver that runs their passes.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/planner/passes.h"

namespace lancet::planner {

struct PlanRequest {
  std::string policy = "sequential";
  int ranks = 1;
  std::int64_t bucket_bytes = 25 << 20;
  OptimizeOptions optimizer;
  bool accumulate = false;  // gradients add up over several plans' runs
  bool update = true;       // false: a micro batch that only adds its gradients up
  // Writes NN_name.ir after each pass into this folder; empty: nowhere.
  std::string dump_directory;
};

// A policy that is not built is a config error that names those that are.
Result<ir::Plan> make_plan(const ir::Program& forward, const PlanRequest& request);

// A forward-only plan (evaluation, generation); outputs are summed over ranks where the model says they are shares.
Result<ir::Plan> make_forward_plan(const ir::Program& forward, int ranks);

std::vector<std::string_view> policies();

}  // namespace lancet::planner
