#include "stage_orders.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "lancet/ir/dependencies.h"
#include "lancet/schedule/plan_memory.h"
#include "lancet/schedule/stage_graph.h"

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
    for (int stage = 0; stage < count(); ++stage) most_bytes_.push_back(most_arena_bytes(stage, most));
  }

  // 1F1B.
  StageOrders plain() const { return {plain_, said()}; }

  Result<StageOrders> zero_bubble() const {
    LANCET_ASSIGN(const auto costs, op_costs());
    if (!costs) return untimed();
    Found zero = shortest_delayed();
    if (is_better({plain_, makespan_of(plain_)}, zero)) return StageOrders{plain_, said("1f1b")};
    return StageOrders{std::move(zero.orders), said()};
  }

  Result<StageOrders> searched() const {
    LANCET_ASSIGN(const auto costs, op_costs());
    if (!costs) return untimed();
    std::vector<schedule::Dependencies> needed;
    std::vector<schedule::StageWork> work;
    for (const ir::Program* program : programs_) needed.push_back(ir::dependencies(*program));
    for (std::size_t stage = 0; stage < programs_.size(); ++stage)
      work.push_back({*programs_[stage], needed[stage], (*costs)[stage]});
    Found zero = shortest_delayed(), plain{plain_, makespan_of(plain_)};
    const bool is_plain = !is_better(zero, plain);
    Found& known = is_plain ? plain : zero;
    auto found = schedule::search_stages(work, request_.mesh, request_.costs->launch_ms(), most_bytes_);
    if (found && (found->makespan < known.ms || !fits(known.orders)))
      return StageOrders{std::move(found->stages), said("a list schedule of all stages")};
    return StageOrders{std::move(known.orders), said(is_plain ? "1f1b" : "zero_bubble")};
  }

 private:
  struct Found {
    Orders orders;
    double ms;
  };
  using OpCosts = std::vector<std::vector<cost::OpCost>>;  // by stage and instruction

  int count() const { return int(programs_.size()); }

  bool fits(const Orders& orders) const {
    for (std::size_t stage = 0; stage < orders.size(); ++stage)
      if (arena_bytes(orders[stage]) > most_bytes_[stage]) return false;
    return true;
  }
  // What fits is better, then what is shorter.
  bool is_better(const Found& a, const Found& b) const {
    return std::pair(!fits(a.orders), a.ms) < std::pair(!fits(b.orders), b.ms);
  }

  // most_plain: the largest arena of all stages under 1F1B, in bytes. Unlike devices have memories of their own.
  std::int64_t most_arena_bytes(int stage, std::int64_t most_plain) const {
    const std::int64_t resident = schedule::resident_bytes(*programs_[std::size_t(stage)]);
    const std::int64_t most = request_.memory_limit > 0 ? request_.memory_limit - resident : most_plain;
    const auto free = request_.costs ? request_.costs->of_stage(stage)->free_bytes() : std::nullopt;
    return free ? std::min(most, *free - resident) : most;
  }

  std::string said(std::string_view found = "") const {
    return fmt::format("{}{}{}", name(request_.pipeline_schedule), found.empty() ? "" : ": ", found);
  }
  // Without the times of ops: zero bubble, which is close to the best without them, or 1F1B if that does not fit or the
  // stages interleave.
  StageOrders untimed() const {
    constexpr std::string_view why = "since the time of an op is not known";
    if (request_.pipeline_schedule == PipelineSchedule::interleaved)
      return {plain_, said(fmt::format("1f1b, {}", why))};
    Orders zero = delayed(true);
    const bool asked = request_.pipeline_schedule == PipelineSchedule::zero_bubble;
    if (!fits(zero)) return {plain_, said("1f1b, whose memory zero_bubble exceeds")};
    return {std::move(zero), asked ? said() : said(fmt::format("zero_bubble, {}", why))};
  }

  // Nothing if the costs lack an op, which they may.
  Result<std::optional<OpCosts>> op_costs() const {
    OpCosts of_stages;
    if (!request_.costs) return std::optional<OpCosts>();
    for (int stage = 0; stage < count(); ++stage) {
      auto costs = cost::op_costs(*request_.costs->of_stage(stage), *programs_[std::size_t(stage)]);
      if (!costs.ok() && request_.costs_may_lack_ops) return std::optional<OpCosts>();
      if (!costs.ok()) return costs.error();
      of_stages.push_back(*std::move(costs));
    }
    return std::optional(std::move(of_stages));
  }

  // Zero bubble with the longest delays of weight gradients whose arenas are small enough. dealt: over all-to-alls.
  Orders delayed(bool dealt) const {
    Orders orders;
    for (int stage = 0; stage < count(); ++stage)
      for (int delay = stage; delay >= 0; --delay) {
        orders.push_back(schedule::in_pipeline_order(*programs_[std::size_t(stage)], PipelineSchedule::zero_bubble,
                                                     stage, count(), {delay, dealt}));
        if (delay == 0 || arena_bytes(orders.back()) <= most_bytes_[std::size_t(stage)]) break;
        orders.pop_back();
      }
    return orders;
  }

  Found shortest_delayed() const {
    Orders dealt = delayed(true), apart = delayed(false);
    const double dealt_ms = makespan_of(dealt), apart_ms = makespan_of(apart);
    if (dealt_ms <= apart_ms) return {std::move(dealt), dealt_ms};
    return {std::move(apart), apart_ms};
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
  return schedule::in_pipeline_order(program, PipelineSchedule::one_forward_one_backward, stage, stages, {});
}

std::int64_t arena_bytes(const schedule::PipelineOrder& order) {
  return schedule::arena_bytes(order.program, order.needed);
}

Result<StageOrders> stage_orders(std::span<const ir::Program* const> programs, const PlanRequest& request) {
  const Stages stages(programs, request);
  if (request.pipeline_schedule == PipelineSchedule::one_forward_one_backward) return stages.plain();
  if (request.pipeline_schedule == PipelineSchedule::zero_bubble) return stages.zero_bubble();
  return stages.searched();
}

}  // namespace lancet::planner
