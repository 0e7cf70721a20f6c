#include "stage_orders.h"

#include <fmt/format.h>

#include <algorithm>

#include "lancet/ir/dependencies.h"
#include "lancet/schedule/plan_memory.h"
#include "lancet/schedule/search_stages.h"

namespace lancet::planner {
namespace {

using config::PipelineSchedule;
using Orders = std::vector<schedule::PipelineOrder>;

std::int64_t arena_of(const schedule::PipelineOrder& order) {
  return schedule::plan_memory(order.program, order.needed).arena_bytes;
}

class Stages {
 public:
  Stages(std::span<const ir::Program* const> programs, const PlanRequest& request)
      : programs_(programs), request_(request) {}

  Orders one_forward_one_backward() const {
    Orders orders;
    for (int stage = 0; stage < count(); ++stage)
      orders.push_back(in_order(PipelineSchedule::one_forward_one_backward, stage, 0));
    return orders;
  }

  // With the longest delays of weight gradients whose arenas are within `most` bytes.
  Orders zero_bubble(std::int64_t most) const {
    Orders orders;
    for (int stage = 0; stage < count(); ++stage)
      for (int delay = stage; delay >= 0; --delay) {
        orders.push_back(in_order(PipelineSchedule::zero_bubble, stage, delay));
        if (delay == 0 || arena_of(orders.back()) <= most) break;
        orders.pop_back();
      }
    return orders;
  }

  Result<StageOrders> searched(const Orders& plain, std::int64_t most) const {
    Orders zero = zero_bubble(most);
    if (!request_.costs) return unknown(std::move(zero));
    std::vector<schedule::Dependencies> needed;
    std::vector<std::vector<cost::OpCost>> op_costs;
    std::vector<schedule::StageWork> work;
    for (int stage = 0; stage < count(); ++stage) {
      const ir::Program& program = *programs_[std::size_t(stage)];
      auto costs = cost::op_costs(*request_.costs->of_stage(stage), program);
      if (!costs.ok() && request_.costs_may_lack_ops) return unknown(std::move(zero));
      if (!costs.ok()) return costs.error();
      op_costs.push_back(*std::move(costs));
      needed.push_back(ir::dependencies(program));
    }
    for (std::size_t stage = 0; stage < programs_.size(); ++stage)
      work.push_back({*programs_[stage], needed[stage], op_costs[stage]});
    const double plain_ms = makespan_of(plain), zero_ms = makespan_of(zero);
    auto found = schedule::search_stages(work, request_.mesh, request_.costs->launch_ms(), most);
    if (found && found->makespan < std::min(plain_ms, zero_ms))
      return StageOrders{std::move(found->stages), said("a list schedule of all stages")};
    if (plain_ms <= zero_ms) return StageOrders{plain, said("1f1b")};
    return StageOrders{std::move(zero), said("zero_bubble")};
  }

 private:
  int count() const { return int(programs_.size()); }

  schedule::PipelineOrder in_order(PipelineSchedule schedule, int stage, int delay) const {
    return schedule::in_pipeline_order(*programs_[std::size_t(stage)], schedule, stage, count(), delay);
  }

  std::string said(std::string_view found) const {
    return fmt::format("{}: {}", name(request_.pipeline_schedule), found);
  }
  StageOrders unknown(Orders zero) const {
    return {std::move(zero), said("zero_bubble, since the time of an op is not known")};
  }

  double makespan_of(const Orders& orders) const {
    std::vector<std::vector<cost::OpCost>> op_costs;
    for (int stage = 0; stage < count(); ++stage)
      op_costs.push_back(cost::op_costs(*request_.costs->of_stage(stage), orders[std::size_t(stage)].program).value());
    std::vector<schedule::StageWork> work;
    for (std::size_t stage = 0; stage < orders.size(); ++stage)
      work.push_back({orders[stage].program, orders[stage].needed, op_costs[stage]});
    return schedule::simulate_stages(work, request_.mesh, request_.costs->launch_ms()).makespan;
  }

  const std::span<const ir::Program* const> programs_;
  const PlanRequest& request_;
};

}  // namespace

Result<StageOrders> stage_orders(std::span<const ir::Program* const> programs, const PlanRequest& request) {
  const Stages stages(programs, request);
  Orders plain = stages.one_forward_one_backward();
  const std::string how(name(request.pipeline_schedule));
  if (request.pipeline_schedule == PipelineSchedule::one_forward_one_backward)
    return StageOrders{std::move(plain), how};
  std::int64_t most = 0;
  for (const schedule::PipelineOrder& order : plain) most = std::max(most, arena_of(order));
  if (request.pipeline_schedule == PipelineSchedule::zero_bubble) return StageOrders{stages.zero_bubble(most), how};
  return stages.searched(plain, most);
}

}  // namespace lancet::planner
