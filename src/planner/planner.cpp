#include "lancet/planner/planner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>

#include "lancet/base/hash.h"
#include "lancet/ir/print.h"
#include "lancet/ops/catalogue.h"

namespace lancet::planner {
namespace {

struct Pass {
  std::string_view name;
  std::function<ir::Program(const ir::Program&)> run;
};

// Runs the passes in order. Before the first and after each, the Program is verified; a failure names the pass.
ir::Program run_passes(ir::Program program, const std::vector<Pass>& passes, const std::string& dump_directory) {
  auto inspect = [&](std::string_view name, std::size_t index) {
    const Status status = ops::verify(program);
    LANCET_CHECK(status.ok(), "after pass {}: {}", name, status.error().message);
    if (!dump_directory.empty())
      std::ofstream(fmt::format("{}/{:02}_{}.ir", dump_directory, index, name)) << ir::print(program);
  };
  inspect("forward", 0);
  for (std::size_t i = 0; i < passes.size(); ++i) {
    program = passes[i].run(program);
    inspect(passes[i].name, i + 1);
  }
  return program;
}

ir::Plan finish(const ir::Program& forward, const ir::Program& program, std::string_view policy, int ranks) {
  ir::Plan plan = plan_memory(program, Ordering::sequential);
  plan.header = {
      {"policy", std::string(policy)}, {"model", hex(hash64(ir::print(forward)))}, {"ranks", std::int64_t(ranks)}};
  const Status status = ir::verify(plan);
  LANCET_CHECK(status.ok(), "the plan of policy {} is unsound: {}", policy, status.error().message);
  return plan;
}

}  // namespace

std::vector<std::string_view> policies() { return {"sequential"}; }

Result<ir::Plan> make_plan(const ir::Program& forward, const PlanRequest& request) {
  const auto known = policies();
  if (std::find(known.begin(), known.end(), request.policy) == known.end())
    return config_error(
        fmt::format("overlap.policy: expected one of {}, found '{}'", fmt::join(known, ", "), request.policy));
  std::vector<Pass> passes{{"autodiff", [&](const ir::Program& p) { return autodiff(p, request.accumulate); }}};
  passes.push_back(
      {"sync", [&](const ir::Program& p) { return sync(p, request.ranks, request.bucket_bytes, request.update); }});
  if (request.update)
    passes.push_back({"optimize", [&](const ir::Program& p) { return optimize(p, request.optimizer); }});
  return finish(forward, run_passes(forward, passes, request.dump_directory), request.policy, request.ranks);
}

Result<ir::Plan> make_forward_plan(const ir::Program& forward, int ranks) {
  const std::vector<Pass> passes{{"sync", [&](const ir::Program& p) { return sync(p, ranks, 0, false); }}};
  return finish(forward, run_passes(forward, passes, ""), "sequential", ranks);
}

}  // namespace lancet::planner
