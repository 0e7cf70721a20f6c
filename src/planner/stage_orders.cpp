#include "stage_orders.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "lancet/ir/dependencies.h"
#include "lancet/schedule/step.h"

namespace lancet::planner {

using config::PipelineSchedule;
using schedule::Candidate;

schedule::PipelineOrder one_forward_one_backward(const Candidate& all, int stage, int stages) {
  return schedule::in_pipeline_order(all.program, all.needed, PipelineSchedule::one_forward_one_backward, stage, stages,
                                     {});
}

Result<std::optional<OpCosts>> op_costs_of(std::span<const ir::Program* const> programs, const PlanRequest& request) {
  OpCosts of_stages;
  if (!request.costs) return std::optional<OpCosts>();
  for (const ir::Program* program : programs) {
    auto costs = cost::op_costs(*request.costs->of_stage(int(of_stages.size())), *program);
    if (!costs.ok() && request.costs_may_lack_ops) return std::optional<OpCosts>();
    if (!costs.ok()) return costs.error();
    of_stages.push_back(*std::move(costs));
  }
  return std::optional(std::move(of_stages));
}

MicroBatches::MicroBatches(Made of_one, int stage, const PlanRequest& request) : one(std::move(of_one)), all(one) {
  repeat(all, request.micro_batches);
  arena = arena_bytes(one_forward_one_backward(all.candidate, stage, request.mesh[ir::Axis::stage]));
}

OfStages of_stages(std::span<const Made> steps, const PlanRequest& request) {
  OfStages made;
  for (const Made& one : steps) made.push_back(std::make_shared<const MicroBatches>(one, int(made.size()), request));
  return made;
}

std::vector<const ir::Program*> programs_of(const OfStages& stages) {
  std::vector<const ir::Program*> programs;
  for (const auto& of : stages) programs.push_back(&of->all.candidate.program);
  return programs;
}

bool are_within(std::span<const std::int64_t> bytes, std::span<const std::int64_t> most) {
  return std::ranges::equal(bytes, most, std::less_equal());
}

schedule::RankClass class_of(int stage, const ir::Program& program, const schedule::Dependencies& needed,
                             std::span<const cost::OpCost> op_costs, const PlanRequest& request) {
  const auto costs = request.costs->of_stage(stage);
  return {program, needed, op_costs, costs->interference(), costs->launch_ms()};
}

Work::Work(const std::vector<const ir::Program*>& programs, const PlanRequest& request) {
  for (const ir::Program* program : programs) needed.push_back(ir::dependencies(*program));
  costs = op_costs_of(programs, request).value().value();
  for (std::size_t stage = 0; stage < programs.size(); ++stage)
    work.push_back(class_of(int(stage), *programs[stage], needed[stage], costs[stage], request));
}

StageOrders Stages::untimed(std::span<const std::int64_t> most) {
  constexpr std::string_view why = "since the time of an op is not known";
  if (asked() == PipelineSchedule::one_forward_one_backward) return {plain(), said(), {}};
  if (asked() == PipelineSchedule::interleaved) return {plain(), said(fmt::format("1f1b, {}", why)), {}};
  const std::vector<int> delays = delays_within(most, true);
  if (!are_within(arenas_of({delays, true}), most))
    return {plain(), said("1f1b, whose memory zero_bubble exceeds"), {}};
  return {delayed(delays, true),
          asked() == PipelineSchedule::zero_bubble ? said() : said(fmt::format("zero_bubble, {}", why)),
          {}};
}

std::ptrdiff_t Stages::forced() const {
  if (request_.overlap.parts <= 1) return 0;
  return std::ranges::count_if(made,
                               [](const auto& of) { return schedule::most_parts(of->all.candidate.program) > 1; });
}

std::vector<StageOrders> Stages::passes_in_order(std::span<const std::int64_t> most) {
  std::vector<StageOrders> orders;
  const bool is_plain = asked() == PipelineSchedule::one_forward_one_backward;
  for (const bool dealt : {true, false})
    if (const std::vector<int> delays = is_plain ? std::vector<int>() : delays_within(most, dealt);
        !is_plain && !timed_.contains({delays, dealt}))
      orders.push_back(timed({delays, dealt}, delayed(delays, dealt),
                             asked() == PipelineSchedule::zero_bubble ? said() : said("zero_bubble")));
  if (const Passes key{{}, false}; !timed_.contains(key))
    orders.push_back(timed(key, plain(), is_plain ? said() : said("1f1b")));
  return orders;
}

double Stages::shortest_ms(std::span<const std::int64_t> most) const {
  double ms = std::numeric_limits<double>::infinity();
  for (const auto& [_, of] : timed_)
    if (are_within(of.arenas, most)) ms = std::min(ms, of.ms);
  return ms;
}

std::optional<StageOrders> Stages::listed(std::span<const std::int64_t> most,
                                          std::span<const std::vector<schedule::StageSettings>> known) {
  if (asked() != PipelineSchedule::searched && asked() != PipelineSchedule::interleaved) return std::nullopt;
  if (!search_) {
    // A stage of a full pipeline holds at most as many micro batches as there are stages.
    const int few = std::max(8, 2 * count());
    std::vector<const ir::Program*> programs;
    for (const auto& of : few < request_.micro_batches ? made : OfStages()) {
      Made& some = sample_.emplace_back(of->one);
      repeat(some, few);
      programs.push_back(&some.candidate.program);
    }
    all_.emplace(programs_of(made), request_);
    if (!programs.empty()) some_.emplace(programs, request_);
    search_.emplace(all_->work, some_ ? some_->work : all_->work, request_.mesh);
  }
  auto found = search_->within(most, known);
  if (!found) return std::nullopt;
  return StageOrders{std::move(found->stages), said("a list schedule of all stages"), std::move(found->arenas),
                     found->makespan};
}

std::string Stages::said(std::string_view found) const {
  return fmt::format("{}{}{}", name(asked()), found.empty() ? "" : ": ", found);
}

Stages::Orders Stages::plain() const {
  Orders orders;
  for (int stage = 0; stage < count(); ++stage) orders.push_back(one_forward_one_backward(of(stage), stage, count()));
  return orders;
}

schedule::PipelineOrder Stages::zero_bubble(int stage, int delay, bool dealt) const {
  return schedule::in_pipeline_order(of(stage).program, of(stage).needed, PipelineSchedule::zero_bubble, stage, count(),
                                     {delay, dealt});
}

std::int64_t Stages::zero_bytes(int stage, int delay, bool dealt) {
  const auto [bytes, is_new] = zero_bytes_.try_emplace({stage, delay, dealt});
  if (is_new) bytes->second = arena_bytes(zero_bubble(stage, delay, dealt));
  return bytes->second;
}

std::vector<int> Stages::delays_within(std::span<const std::int64_t> most, bool dealt) {
  std::vector<int> delays;
  for (int stage = 0; stage < count(); ++stage) {
    int delay = stage;
    while (delay > 0 && zero_bytes(stage, delay, dealt) > most[std::size_t(stage)]) --delay;
    delays.push_back(delay);
  }
  return delays;
}

std::vector<std::int64_t> Stages::arenas_of(const Passes& passes) {
  const auto& [delays, dealt] = passes;
  std::vector<std::int64_t> arenas;
  for (int stage = 0; stage < count(); ++stage)
    arenas.push_back(delays.empty() ? made[std::size_t(stage)]->arena
                                    : zero_bytes(stage, delays[std::size_t(stage)], dealt));
  return arenas;
}

Stages::Orders Stages::delayed(const std::vector<int>& delays, bool dealt) const {
  Orders orders;
  for (const int delay : delays) orders.push_back(zero_bubble(int(orders.size()), delay, dealt));
  return orders;
}

StageOrders Stages::timed(const Passes& passes, Orders orders, std::string how) {
  std::vector<const ir::Program*> programs;
  for (const schedule::PipelineOrder& order : orders) programs.push_back(&order.program);
  const OpCosts op_costs = op_costs_of(programs, request_).value().value();
  std::vector<schedule::RankClass> work;
  for (std::size_t stage = 0; stage < orders.size(); ++stage)
    work.push_back(class_of(int(stage), orders[stage].program, orders[stage].needed, op_costs[stage], request_));
  const double ms = schedule::simulate(work, request_.mesh).makespan;
  const std::vector<std::int64_t> arenas = arenas_of(passes);
  timed_[passes] = {arenas, ms};
  return {std::move(orders), std::move(how), arenas, ms};
}

}  // namespace lancet::planner
