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

class Stages {
 public:
  Stages(std::span<const ir::Program* const> programs, const PlanRequest& request)
      : programs_(programs), request_(request) {
    std::int64_t most = 0;
    for (int stage = 0; stage < count(); ++stage) {
      plain_.push_back(one_forward_one_backward(*programs_[std::size_t(stage)], stage, count()));
      if (request.pipeline_schedule != PipelineSchedule::one_forward_one_backward && request.memory_limit == 0)
        most = std::max(most, arena_bytes(plain_.back()));
    }
    for (const ir::Program* program : programs)
      most_bytes_.push_back(request.memory_limit == 0 ? most
                                                      : request.memory_limit - schedule::resident_bytes(*program));
  }

  // 1F1B.
  const Orders& plain() const { return plain_; }

  // With the longest delays of weight gradients whose arenas are small enough.
  Orders zero_bubble() const {
    Orders orders;
    for (int stage = 0; stage < count(); ++stage)
      for (int delay = stage; delay >= 0; --delay) {
        orders.push_back(schedule::in_pipeline_order(*programs_[std::size_t(stage)], PipelineSchedule::zero_bubble,
                                                     stage, count(), delay));
        if (delay == 0 || arena_bytes(orders.back()) <= most_bytes_[std::size_t(stage)]) break;
        orders.pop_back();
      }
    return orders;
  }

  Result<StageOrders> searched() const {
    if (!request_.costs) return unknown();
    std::vector<schedule::Dependencies> needed;
    std::vector<std::vector<cost::OpCost>> op_costs;
    std::vector<schedule::StageWork> work;
    for (int stage = 0; stage < count(); ++stage) {
      const ir::Program& program = *programs_[std::size_t(stage)];
      auto costs = cost::op_costs(*request_.costs->of_stage(stage), program);
      if (!costs.ok() && request_.costs_may_lack_ops) return unknown();
      if (!costs.ok()) return costs.error();
      op_costs.push_back(*std::move(costs));
      needed.push_back(ir::dependencies(program));
    }
    for (std::size_t stage = 0; stage < programs_.size(); ++stage)
      work.push_back({*programs_[stage], needed[stage], op_costs[stage]});
    Orders zero = zero_bubble();
    const double plain_ms = makespan_of(plain_), zero_ms = makespan_of(zero);
    auto found = schedule::search_stages(work, request_.mesh, request_.costs->launch_ms(), most_bytes_);
    if (found && found->makespan < std::min(plain_ms, zero_ms))
      return StageOrders{std::move(found->stages), said("a list schedule of all stages")};
    if (plain_ms <= zero_ms) return StageOrders{plain_, said("1f1b")};
    return StageOrders{std::move(zero), said("zero_bubble")};
  }

 private:
  int count() const { return int(programs_.size()); }

  std::string said(std::string_view found) const {
    return fmt::format("{}: {}", name(request_.pipeline_schedule), found);
  }
  StageOrders unknown() const {
    constexpr std::string_view why = "since the time of an op is not known";
    if (request_.pipeline_schedule == PipelineSchedule::interleaved)
      return {plain_, said(fmt::format("1f1b, {}", why))};
    return {zero_bubble(), said(fmt::format("zero_bubble, {}", why))};
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
  Orders plain_;
  std::vector<std::int64_t> most_bytes_;  // by stage: of its arena
};

}  // namespace

schedule::PipelineOrder one_forward_one_backward(const ir::Program& program, int stage, int stages) {
  return schedule::in_pipeline_order(program, PipelineSchedule::one_forward_one_backward, stage, stages, 0);
}

std::int64_t arena_bytes(const schedule::PipelineOrder& order) {
  return schedule::plan_memory(order.program, order.needed).arena_bytes;
}

Result<StageOrders> stage_orders(std::span<const ir::Program* const> programs, const PlanRequest& request) {
  const Stages stages(programs, request);
  const std::string how(name(request.pipeline_schedule));
  if (request.pipeline_schedule == PipelineSchedule::one_forward_one_backward) return StageOrders{stages.plain(), how};
  if (request.pipeline_schedule == PipelineSchedule::zero_bubble) return StageOrders{stages.zero_bubble(), how};
  return stages.searched();
}

}  // namespace lancet::planner
