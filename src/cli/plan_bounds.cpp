#include <fmt/format.h>

#include "plan_report.h"

namespace lancet::cli {
namespace {

using schedule::Bounds;
using schedule::IdealStep;
using schedule::IdealSteps;

// A step beside the one that it starts from.
std::string cells(const IdealStep& step, const IdealStep& today) {
  const double gain = step.ms > 0 ? 100 * (today.ms / step.ms - 1) : 0;
  return fmt::format(" | {:>8.1f} {:>8.1f} {:>+7.1f}%", step.ms, step.exposed, gain);
}

std::string cells(const IdealSteps& steps, const Bounds& bounds) {
  return cells(steps.any, bounds.today.any) + cells(steps.within, bounds.today.within);
}

}  // namespace

std::string bounds_table(const planner::PlanReport& report) {
  const Bounds &step = report.bounds->step, &plan = report.bounds->plan;
  const std::string within = fmt::format("in {:.2f} x its memory", report.bounds->memory_factor);
  std::string text = fmt::format(
      "bounds: steps in ms with ideal dependencies, and what they gain over the line `today`\n"
      "{:<20} | {:^26} | {:^26} | {:^26} | {:^26}\n",
      "", "the whole step", within, "the plan of " + report.chosen, "in the same memory");
  text += fmt::format("{:<20}", "way");
  for (int column = 0; column < 4; ++column) text += fmt::format(" | {:>8} {:>8} {:>8}", "step", "exposed", "gain");
  const auto add = [&](std::string_view name, const IdealSteps& of_step, const IdealSteps& of_plan) {
    text += fmt::format("\n{:<20}{}{}", name, cells(of_step, step), cells(of_plan, plan));
  };
  add("today", step.today, plan.today);
  const auto ways = schedule::overlap_ways();
  for (std::size_t w = 0; w < ways.size(); ++w) add(ways[w].name, step.ways[w], plan.ways[w]);
  const auto work = [](const Bounds& bounds) {
    const IdealStep both{bounds.least(), bounds.least() - bounds.compute};
    return IdealSteps{both, both};
  };
  add("work", work(step), work(plan));
  text += "\n  today: weight gradients and updates run in gaps; of the plan, all orders of its parts\n";
  for (const schedule::OverlapWay& way : ways)
    text += fmt::format("  {}: {}{}\n", way.name, way.what, way.from.empty() ? "" : fmt::format(" ({})", way.from));
  return text + fmt::format("  work: the longer of computation ({:.1f} ms) and network ({:.1f} ms)\n", step.compute,
                            step.network);
}

}  // namespace lancet::cli
