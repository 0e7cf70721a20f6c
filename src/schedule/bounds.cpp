// Each way is list-scheduled under a few settings, of which the shortest schedule counts. A list schedule is a
// heuristic, so what is feasible without a way counts under the way, too: today's step, in program order as well, and
// the ways that it contains. Across the step's border a step takes what the third one adds to two.
#include "lancet/schedule/bounds.h"

#include <algorithm>
#include <iterator>
#include <limits>

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
    {"rows and columns", "both", "Comet"},
    {"contracting", "features of what an all-to-all brings, and the product that reads them", "XLA"},
    {"capacity or peers", "the experts and their all-to-alls", "Tutel, FasterMoE"},
    {"batch forward", "the forward pass along the batch", "Lancet"},
    {"batch", "both passes along the batch, weight gradients whole", "Lancet, FlowMoE"},
    {"ring shards", "all-gather and product, product and reduce-scatter; own shard first or last", "collective matmul"},
    {"neighbours", "two halves of the batch: forward of one beside backward of the other", "Megatron, DualPipe"},
    {"gathers across steps", "across the step's border, all-gathers of updated weights", "ZeRO"},
    {"across steps", "across the step's border, whatever updates weights before they are read", "ZeRO, DeepSpeed"},
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

const IdealStep& shorter(const IdealStep& a, const IdealStep& b) { return b.ms < a.ms ? b : a; }
IdealSteps shorter(const IdealSteps& a, const IdealSteps& b) {
  return {shorter(a.any, b.any), shorter(a.within, b.within)};
}

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
  return std::max(exposed, 0.0);
}

constexpr IdealStep not_found{std::numeric_limits<double>::infinity(), 0};

// steps: the number of steps in the jobs. A lead is relative to the longest path, and is to be the same for all.
IdealSteps schedule_of(const IdealJobs& step, std::int64_t memory_bytes, int steps = 1) {
  IdealSteps best{not_found, not_found};
  const auto attempt = [&](ListOptions options) {
    ListSchedule schedule = list_schedule(step.jobs, options, {step.block_bytes});
    if (schedule.makespan >= best.within.ms) return;  // no shorter than the best of any memory, too
    best.any = shorter(best.any, {schedule.makespan, exposed_in(step.jobs, schedule)});
    if (schedule.peak_bytes > memory_bytes) {
      options.hold_bytes = memory_bytes;
      schedule = list_schedule(step.jobs, options, {step.block_bytes});
      if (schedule.peak_bytes > memory_bytes || schedule.makespan >= best.within.ms) return;
    }
    best.within = {schedule.makespan, exposed_in(step.jobs, schedule)};
    best.any = shorter(best.any, best.within);
  };
  const std::int64_t any = std::numeric_limits<std::int64_t>::max(), share = memory_bytes / 20;
  attempt({.fill_gaps = false});
  attempt({.in_order = {true, true, true}});
  for (const std::int64_t fills_at : {any, memory_bytes, 18 * share, 16 * share})
    attempt({.in_order = {false, true, false}, .memory_bytes = fills_at});
  for (const double of_step : all_leads)
    for (const bool feed_network : {false, true})
      for (const std::int64_t fills_at : {any, memory_bytes, 19 * share, 18 * share, 17 * share})
        attempt({.lead = of_step / steps,
                 .backward_lead = of_step / steps,
                 .feed_network = feed_network,
                 .memory_bytes = fills_at});
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
IdealSteps steady_step(const IdealStepJobs& step, IdealOptions options, std::int64_t memory_bytes) {
  options.steps = 2;
  const IdealSteps two = schedule_of(step.make(options), memory_bytes, options.steps);
  options.steps = 3;
  const IdealSteps three = schedule_of(step.make(options), memory_bytes, options.steps);
  const auto third = [](const IdealStep& of_three, const IdealStep& of_two) {
    if (of_three.ms == not_found.ms || of_two.ms == not_found.ms) return not_found;
    return IdealStep{of_three.ms - of_two.ms, std::max(0.0, of_three.exposed - of_two.exposed)};
  };
  return {third(three.any, two.any), third(three.within, two.within)};
}

// Three steps need not be in the rhythm of many, whose steps are no shorter than the work.
IdealStep at_least_work(IdealStep step, const Bounds& bounds) {
  step.ms = std::max(step.ms, bounds.least());
  step.exposed = std::max(0.0, std::min(step.exposed, step.ms - bounds.compute));
  return step;
}

// Makes no way longer than today's step, nor than a way that it contains, nor with any memory than within the limit.
void order_ways(Bounds& bounds) {
  for (std::size_t w = 0; w < std::size(ways); ++w) {
    bounds.ways[w] = shorter(bounds.ways[w], bounds.today);
    for (std::size_t other = 0; other < w; ++other)
      if (contains(options_of[w], options_of[other])) bounds.ways[w] = shorter(bounds.ways[w], bounds.ways[other]);
    bounds.ways[w].any = shorter(bounds.ways[w].any, bounds.ways[w].within);
  }
}

}  // namespace

std::span<const OverlapWay> overlap_ways() { return ways; }

std::vector<Chunked> chunked_variants(const Step& step) {
  constexpr std::size_t most_sizes = 3;
  std::vector<Chunked> variants{{step.program(), step.op_costs()}};
  for (const std::int64_t bytes : chunk_sizes(step.program(), step.costs(), most_sizes))
    variants.push_back(cut_all_reduces(step.program(), step.op_costs(), step.costs(), bytes));
  return variants;
}

Bounds find_bounds(std::span<const Chunked> variants, std::int64_t memory_bytes) {
  Bounds bounds{.today = {not_found, not_found}, .ways = {std::size(ways), {not_found, not_found}}};
  const auto& [first, costs] = variants.front();
  for (std::size_t i = 0; i < costs.size(); ++i)
    (first.instructions[i].stream == ir::Stream::compute ? bounds.compute : bounds.network) += costs[i].ms;
  for (const auto& [program, op_costs] : variants) {
    const IdealStepJobs step(program, op_costs);
    const IdealStep as_it_is = in_order(program, op_costs);
    bounds.today = shorter(bounds.today, {as_it_is, as_it_is});
    bounds.today = shorter(bounds.today, schedule_of(step.make({}), memory_bytes));
    for (std::size_t w = 0; w < std::size(ways); ++w) {
      const IdealOptions& options = options_of[w];
      const IdealSteps found = options.border == Border::closed ? schedule_of(step.make(options), memory_bytes)
                                                                : steady_step(step, options, memory_bytes);
      bounds.ways[w] = shorter(bounds.ways[w], {at_least_work(found.any, bounds), at_least_work(found.within, bounds)});
    }
  }
  order_ways(bounds);
  return bounds;
}

}  // namespace lancet::schedule
