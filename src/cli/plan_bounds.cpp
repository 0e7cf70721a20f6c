#include <fmt/format.h>

#include "plan_report.h"

namespace lancet::cli {
namespace {

using schedule::Bounds;
using schedule::IdealStep;

double percent(double before, double after) { return after > 0 ? 100 * (before / after - 1) : 0; }

// A step beside the one that it starts from.
std::string cells(const IdealStep& step, const Bounds& bounds) {
  const double hidden = bounds.network > 0 ? 100 * (1 - step.exposed / bounds.network) : 0;
  return fmt::format("{:>9.1f} {:>9.1f} {:>6.0f}% {:>+7.1f}%", step.ms, step.exposed, hidden,
                     percent(bounds.today.ms, step.ms));
}

}  // namespace

std::string bounds_table(const planner::PlanReport& report) {
  const Bounds &step = report.bounds->step, &plan = report.bounds->plan;
  std::string text = fmt::format(
      "ideal dependencies: tiles without overhead, streams that do not slow each other down, no limit of memory\n"
      "gain: over the first line of its column; over plan: of the whole step's way over the plan's first line\n"
      "{:<20} {:^35} {:>10}   {:^35}\n"
      "{:<20} {:>9} {:>9} {:>7} {:>8} {:>10}   {:>9} {:>9} {:>7} {:>8}  {}\n",
      "", "from the whole step", "", fmt::format("from the plan of {}", report.chosen), "way", "step ms", "exposed",
      "hidden", "gain", "over plan", "step ms", "exposed", "hidden", "gain", "what runs side by side");
  const auto add = [&](std::string_view name, const IdealStep& whole, const IdealStep& planned,
                       const std::string& what) {
    text += fmt::format("{:<20} {} {:>+9.1f}%   {}  {}\n", name, cells(whole, step), percent(plan.today.ms, whole.ms),
                        cells(planned, plan), what);
  };
  add("today", step.today, plan.today, "weight gradients and updates in the gaps; in the plan also its parts");
  const auto ways = schedule::overlap_ways();
  for (std::size_t w = 0; w < ways.size(); ++w)
    add(ways[w].name, step.ways[w], plan.ways[w],
        fmt::format("{}{}", ways[w].what, ways[w].from.empty() ? "" : fmt::format(" ({})", ways[w].from)));
  const auto work = [](const Bounds& bounds) { return IdealStep{bounds.least(), bounds.least() - bounds.compute}; };
  add("work", work(step), work(plan),
      fmt::format("computation of {:.1f} ms, a network of {:.1f} ms", step.compute, step.network));
  return text;
}

}  // namespace lancet::cli
