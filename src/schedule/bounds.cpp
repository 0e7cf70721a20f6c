// Each way is list-scheduled under a few settings, of which the shortest schedule counts. A list schedule is a
// heuristic, so what is feasible without a way counts under the way, too: today's step, in program order as well, and
// the ways that it contains. Across the step's border a step takes what the third one adds to two.
#include "lancet/schedule/bounds.h"

#include <algorithm>
#include <iterator>

#include "ideal_jobs.h"
#include "lancet/ir/dependencies.h"
#include "lancet/schedule/simulate.h"

namespace lancet::schedule {
namespace {

using ideal::batch_backward;
using ideal::batch_forward;

constexpr OverlapWay ways[] = {
    {"source rows", "received rows by the rank they come from, own first, and the experts' product", "Comet"},
    {"columns", "the experts' product by features, and the all-to-all that sends them", "Comet"},
    {"source rows, columns", "both", "Comet"},
    {"contracting", "features of what an all-to-all brings, and the product that reads them", "XLA"},
    {"capacity or peers", "the experts and their all-to-alls", "Tutel, FasterMoE"},
    {"batch, forward", "the forward pass along the batch", "Lancet"},
    {"batch", "both passes along the batch, weight gradients whole", "Lancet, FlowMoE"},
    {"ring shards", "all-gather and product, product and reduce-scatter; own shard first or last", "collective matmul"},
    {"neighbours", "two halves of the batch: forward of one beside backward of the other", "Megatron, DualPipe"},
    {"ring, gathers", "across the step's border, all-gathers of updated weights", "ZeRO"},
    {"ring", "across the step's border, whatever updates weights before they are read", "ZeRO, DeepSpeed"},
    {"all", "all of these together", ""},
};

constexpr IdealOptions options_of[] = {
    {.cuts = ideal::source_rows},
    {.cuts = ideal::columns},
    {.cuts = ideal::source_rows | ideal::columns},
    {.cuts = ideal::contracting},
    {.cuts = ideal::experts},
    {.cuts = batch_forward},
    {.cuts = batch_forward | batch_backward},
    {.cuts = ideal::ring_shards},
    {.halves = true},
    {.border = Border::gathers},
    {.border = Border::open},
    {.cuts = ideal::all, .halves = true, .border = Border::open},
};
static_assert(std::size(ways) == std::size(options_of));

bool contains(const IdealOptions& outer, const IdealOptions& inner) {
  return (inner.cuts & ~outer.cuts) == 0 && (outer.halves || !inner.halves) && inner.border <= outer.border;
}

IdealStep shorter(const IdealStep& a, const IdealStep& b) { return b.ms < a.ms ? b : a; }

// Time in which a communication runs and no computation does. The jobs of a stream follow one another.
double exposed_in(std::span<const Job> jobs, const ListSchedule& schedule) {
  std::vector<std::pair<double, double>> computing, sending;  // start and end, ascending
  for (const ir::InstructionId id : schedule.order) {
    const Job& job = jobs[id.index()];
    const double end = schedule.end[id.index()];
    (job.stream == ir::Stream::compute ? computing : sending).emplace_back(end - job.ms, end);
  }
  double exposed = 0;
  auto beside = computing.begin();
  for (const auto& [start, end] : sending) {
    exposed += end - start;
    while (beside != computing.end() && beside->second <= start) ++beside;
    for (auto cover = beside; cover != computing.end() && cover->first < end; ++cover)
      exposed -= std::min(cover->second, end) - std::max(cover->first, start);
  }
  return exposed;
}

IdealStep schedule_of(std::span<const Job> jobs) {
  IdealStep best{.ms = -1};
  const auto attempt = [&](const ListOptions& options) {
    const ListSchedule schedule = list_schedule(jobs, options);
    if (best.ms < 0 || schedule.makespan < best.ms) best = {schedule.makespan, exposed_in(jobs, schedule)};
  };
  for (const double lead : {0.0, 1.0 / 64, 1.0 / 16})
    for (const bool feed_network : {false, true})
      attempt({.lead = lead, .backward_lead = lead, .feed_network = feed_network});
  attempt({.fill_gaps = false});
  return best;
}

// In program order, each stream by itself.
IdealStep in_order(const ir::Program& program, std::span<const cost::OpCost> op_costs) {
  std::vector<cost::OpCost> costs(op_costs.begin(), op_costs.end());
  for (cost::OpCost& cost : costs) cost.core_ms = 0;
  const Timeline timeline = simulate(program, ir::dependencies(program), costs, {}, 0);
  return {timeline.makespan, timeline.exposed};
}

// One step of many that follow one another.
IdealStep steady_step(const IdealJobs& step, IdealOptions options) {
  options.steps = 2;
  const IdealStep two = schedule_of(step.make(options));
  options.steps = 3;
  const IdealStep three = schedule_of(step.make(options));
  return {three.ms - two.ms, std::max(0.0, three.exposed - two.exposed)};
}

}  // namespace

std::span<const OverlapWay> overlap_ways() { return ways; }

Bounds find_bounds(const ir::Program& program, std::span<const cost::OpCost> op_costs) {
  Bounds bounds;
  for (std::size_t i = 0; i < op_costs.size(); ++i)
    (program.instructions[i].stream == ir::Stream::compute ? bounds.compute : bounds.network) += op_costs[i].alone_ms();
  const IdealJobs step(program, op_costs);
  bounds.today = shorter(schedule_of(step.make({})), in_order(program, op_costs));
  for (std::size_t w = 0; w < std::size(ways); ++w) {
    const IdealOptions& options = options_of[w];
    const bool across = options.border != Border::closed;
    IdealStep found = across ? steady_step(step, options) : schedule_of(step.make(options));
    // Three steps need not be in the rhythm of many, whose steps are no shorter than the work.
    found.ms = std::max(found.ms, bounds.least());
    found.exposed = std::min(found.exposed, found.ms - bounds.compute);
    found = shorter(found, bounds.today);
    for (std::size_t other = 0; other < w; ++other)
      if (contains(options, options_of[other])) found = shorter(found, bounds.ways[other]);
    bounds.ways.push_back(found);
  }
  return bounds;
}

}  // namespace lancet::schedule
