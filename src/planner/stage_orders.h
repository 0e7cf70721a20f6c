// The micro batches of all pipeline stages, and the orders that they can run in.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/cost/costs.h"
#include "lancet/planner/planner.h"
#include "lancet/schedule/plan_memory.h"
#include "lancet/schedule/stage_graph.h"
#include "steps.h"

namespace lancet::planner {

using OpCosts = std::vector<std::vector<cost::OpCost>>;  // by stage and instruction
// Nothing if there are no costs, or if they lack an op, which they may.
Result<std::optional<OpCosts>> op_costs_of(std::span<const ir::Program* const> programs, const PlanRequest& request);

// The orders of all stages' instructions under train.pipeline_schedule.
struct StageOrders {
  std::vector<schedule::PipelineOrder> stages;
  std::string how;  // the schedule; of a search, also what it found
  std::vector<std::int64_t> arenas;
  double ms = 0;  // with all costs known
};

// The order of one stage's micro batches under 1F1B.
schedule::PipelineOrder one_forward_one_backward(const schedule::Candidate& all, int stage, int stages);
inline std::int64_t arena_bytes(const schedule::PipelineOrder& order) {
  return schedule::arena_bytes(order.program, order.needed);
}

// What a stage runs, as a policy schedules it.
struct MicroBatches {
  Made one, all;
  std::int64_t arena = 0;  // under 1F1B

  MicroBatches(Made of_one, int stage, const PlanRequest& request);
};
using OfStages = std::vector<std::shared_ptr<const MicroBatches>>;
OfStages of_stages(std::span<const Made> steps, const PlanRequest& request);
std::vector<const ir::Program*> programs_of(const OfStages& stages);

// By stage.
bool are_within(std::span<const std::int64_t> bytes, std::span<const std::int64_t> most);

schedule::RankClass class_of(int stage, const ir::Program& program, const schedule::Dependencies& needed,
                             std::span<const cost::OpCost> op_costs, const PlanRequest& request);

// The stages of a search, which orders their instructions itself. programs: by stage; their costs are known.
struct Work {
  Work(const std::vector<const ir::Program*>& programs, const PlanRequest& request);

  std::vector<schedule::Dependencies> needed;
  OpCosts costs;
  std::vector<schedule::RankClass> work;
};

// The micro batches of all stages, as a policy schedules them, and their orders under request.pipeline_schedule. 1F1B
// of programs with several chunks is interleaved.
class Stages {
 public:
  Stages(std::string_view policy, OfStages made, const PlanRequest& request)
      : policy(policy), made(std::move(made)), request_(request) {}

  // If the costs lack an op, which they may: weight gradients run beside all-to-alls, searched is zero bubble and
  // interleaved 1F1B, as zero bubble is where its arenas exceed `most`.
  StageOrders untimed(std::span<const std::int64_t> most);

  // Stages with a forced number of parts, which takes the place of whole instructions, however long.
  std::ptrdiff_t forced() const;

  // With all costs known. Orders that other calls did not return: 1F1B and, unless that is asked for, zero bubble with
  // weight gradients beside all-to-alls or not, and as long delays of them as the memory of each stage allows.
  std::vector<StageOrders> passes_in_order(std::span<const std::int64_t> most);
  // Of these orders; infinite if none fits.
  double shortest_ms(std::span<const std::int64_t> most) const;

  // Under searched and interleaved, a list schedule of all stages; nothing if none fits, or if it is no shorter than
  // those of calls with less memory. known: as for schedule::StagesSearch::within.
  std::optional<StageOrders> listed(std::span<const std::int64_t> most,
                                    std::span<const std::vector<schedule::StageSettings>> known = {});
  // What the last of these follows.
  const std::vector<schedule::StageSettings>& settings() const { return search_->settings(); }

  const std::string_view policy;
  const OfStages made;

 private:
  using Orders = std::vector<schedule::PipelineOrder>;
  using Passes = std::pair<std::vector<int>, bool>;  // delays and dealt; 1F1B: none

  int count() const { return int(made.size()); }
  const schedule::Candidate& of(int stage) const { return made[std::size_t(stage)]->all.candidate; }
  config::PipelineSchedule asked() const { return request_.pipeline_schedule; }
  std::string said(std::string_view found = "") const;

  Orders plain() const;
  schedule::PipelineOrder zero_bubble(int stage, int delay, bool dealt) const;
  std::int64_t zero_bytes(int stage, int delay, bool dealt);  // of its arena
  std::vector<std::int64_t> arenas_of(const Passes& passes);
  // By stage, the longest delay of weight gradients whose arena is small enough. dealt: over all-to-alls.
  std::vector<int> delays_within(std::span<const std::int64_t> most, bool dealt);
  Orders delayed(const std::vector<int>& delays, bool dealt) const;
  StageOrders timed(const Passes& passes, Orders orders, std::string how);

  const PlanRequest& request_;
  std::map<std::tuple<int, int, bool>, std::int64_t> zero_bytes_;  // by stage, delay and dealt
  struct Timed {
    std::vector<std::int64_t> arenas;
    double ms = 0;
  };
  std::map<Passes, Timed> timed_;
  std::deque<Made> sample_;
  std::optional<Work> all_, some_;
  std::optional<schedule::StagesSearch> search_;
};

}  // namespace lancet::planner
