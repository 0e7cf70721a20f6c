#include "plan_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "lancet/ir/micro_batches.h"
#include "lancet/ir/step_border.h"
#include "lancet/ops/catalogue.h"
#include "lancet/schedule/schedule_report.h"

namespace lancet::cli {
namespace {

std::string in_megabytes(std::int64_t bytes) { return fmt::format("{:.1f}", double(bytes) * 1e-6); }

double hidden_percent(const schedule::Timeline& t) {
  return t.communication > 0 ? 100 * (1 - t.exposed / t.communication) : 0;
}

std::string_view direction(ir::Role role) { return role == ir::Role::forward ? "forward" : "backward"; }

// Returns the name of an instruction's work, which all its parts share: "h.2.attn.c_attn dw".
std::string site(const ir::Instruction& instruction) {
  return fmt::format("{} {}", schedule::site_of(instruction), ir::name(instruction.role));
}

// One all-to-all, all its parts and micro batches together, and the computation that hides it.
struct SiteCover {
  std::string name;
  std::string_view direction;
  int parts = 0;
  double ms = 0, covered_ms = 0;
  std::vector<std::pair<std::string, double>> under;  // the longest first
};

std::vector<SiteCover> site_covers(const ir::Plan& plan) {
  std::vector<SiteCover> sites;
  std::map<std::string, std::size_t> index;
  for (const schedule::CommunicationCover& cover :
       schedule::communication_covers(plan.program, plan.predicted, ir::Stream::expert)) {
    const ir::Instruction& all_to_all = plan.program.instructions[cover.communication.index()];
    if (ops::kind(all_to_all) != ops::Kind::all_to_all) continue;  // counts are a few bytes
    const auto [it, first] = index.emplace(site(all_to_all), sites.size());
    if (first) sites.push_back({schedule::site_of(all_to_all), direction(all_to_all.role), 0, 0, 0, {}});
    SiteCover& sum = sites[it->second];
    sum.parts += all_to_all.micro_batch == 0;
    sum.ms += cover.ms;
    sum.covered_ms += cover.covered_ms;
    for (const schedule::Cover& under : cover.under) {
      const std::string name = site(plan.program.instructions[under.instruction.index()]);
      auto same =
          std::find_if(sum.under.begin(), sum.under.end(), [&](const auto& item) { return item.first == name; });
      if (same == sum.under.end()) same = sum.under.insert(same, {name, 0});
      same->second += under.ms;
    }
  }
  for (SiteCover& sum : sites)
    std::stable_sort(sum.under.begin(), sum.under.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
  return sites;
}

std::string longest_first(const std::vector<std::pair<std::string, double>>& under) {
  constexpr std::size_t shown = 3;
  std::vector<std::string> items;
  double rest = 0;
  for (std::size_t i = 0; i < under.size(); ++i) {
    if (i < shown)
      items.push_back(fmt::format("{} {:.2f}", under[i].first, under[i].second));
    else
      rest += under[i].second;
  }
  if (under.size() > shown) items.push_back(fmt::format("{} more {:.2f}", under.size() - shown, rest));
  return items.empty() ? "-" : fmt::format("{}", fmt::join(items, ", "));
}

char letter(const ir::Instruction& instruction) {
  if (instruction.stream == ir::Stream::expert) return 'a';
  if (ir::of_step_before(instruction)) return instruction.stream == ir::Stream::reduce ? 's' : 'v';
  if (instruction.stream == ir::Stream::reduce) return 'r';
  if (instruction.role == ir::Role::forward) return 'f';
  if (instruction.role == ir::Role::dx) return 'x';
  return instruction.role == ir::Role::dw ? 'w' : 'u';
}

constexpr std::size_t columns = 100;

std::string stream_row(const ir::Plan& plan, ir::Stream stream, double end) {
  std::vector<std::map<char, double>> busy(columns);
  const double width = end / columns;
  for (std::size_t i = 0; i < plan.program.instructions.size(); ++i) {
    const ir::Instruction& at = plan.program.instructions[i];
    const ir::Interval& when = plan.predicted[i];
    if (at.stream != stream || when.end <= when.start) continue;
    for (auto c = std::min(std::size_t(when.start / width), columns - 1); c < columns && double(c) * width < when.end;
         ++c)
      busy[c][letter(at)] += std::min(when.end, double(c + 1) * width) - std::max(when.start, double(c) * width);
  }
  std::string row;
  for (const auto& column : busy) {
    char best = ' ';
    double most = 0, sum = 0;
    for (const auto& [role, ms] : column) {
      sum += ms;
      if (ms > most) most = ms, best = role;
    }
    row += sum >= width / 2 ? best : sum > width / 20 ? '.' : ' ';
  }
  return row;
}

}  // namespace

std::string pass_table(const planner::PlanReport& report) {
  std::string text = fmt::format("{:<28} {:>9} {:>12}\n", "pass", "ms", "instructions");
  for (const planner::PassRun& run : report.passes)
    text += fmt::format("{:<28} {:>9.2f} {:>12}\n", run.name, run.ms, run.instructions);
  return text;
}

std::string policy_table(const planner::PlanReport& report) {
  std::string text = fmt::format("{:<16} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>2} {:>8}  {}\n", "policy", "step ms",
                                 "compute", "a2a", "reduce", "exposed", "hidden", "k", "arena MB", "schedule");
  for (const planner::PolicyResult& result : report.policies) {
    const schedule::Timeline& t = result.timeline;
    text += fmt::format("{:<16} {:>9.1f} {:>9.1f} {:>9.1f} {:>9.1f} {:>9.1f} {:>6.0f}% {:>2} {:>8}  {}\n",
                        result.policy + (result.policy == report.chosen ? " *" : ""), t.makespan, t.compute,
                        t.all_to_all, t.all_reduce, t.exposed, hidden_percent(t), result.parts,
                        in_megabytes(result.arena_bytes), result.how);
  }
  const planner::LowerBound& bound = report.lower_bound;
  if (bound.ms() > 0)  // else the plan is from a file
    text += fmt::format("{:<16} {:>9.1f} {:>9.1f} {:>44} of whole operations: compute, or a network of {:.1f} ms\n",
                        "bound", bound.ms(), bound.compute, "", bound.network);
  if (!report.why.empty()) text += fmt::format("why: {}\n", report.why);
  if (!report.why_not_across_steps.empty())
    text += fmt::format("border: each step ends before the next one begins: {}\n", report.why_not_across_steps);
  return text;
}

std::string schedule_text(const planning::PlannedStep& planned) {
  const std::int32_t micro_batches = ir::micro_batches(planned.plan.program);
  std::string text = fmt::format("* {} runs: {} instructions{}, arena {} MB\n", planned.report.chosen,
                                 planned.plan.program.instructions.size(),
                                 micro_batches > 1 ? fmt::format(" of {} micro batches", micro_batches) : "",
                                 in_megabytes(planned.plan.arena_bytes));
  const auto ranges = schedule::split_ranges(planned.plan.program);
  for (const schedule::SplitRange& range : ranges)
    text += fmt::format("  {:<8} in {} parts: {} to {}\n", direction(range.role), range.parts, range.first, range.last);
  if (ranges.empty()) text += "  nothing is split in parts\n";
  if (const auto left = std::ranges::count_if(planned.plan.program.instructions, ir::of_step_before); left > 0)
    text += fmt::format(
        "  {} instructions end the step before: sums of gradients and updates, marked @-1 in the plan\n", left);
  return text;
}

std::string cover_table(const ir::Plan& plan) {
  const auto sites = site_covers(plan);
  if (sites.empty()) return "no all-to-all takes time\n";
  std::size_t width = 0;
  for (const SiteCover& sum : sites) width = std::max(width, sum.name.size());
  std::string text = fmt::format("{:<{}} {:<8} {:>5} {:>8} {:>8}  {}\n", "all-to-all", width, "", "parts", "ms",
                                 "covered", "by what (ms)");
  for (const SiteCover& sum : sites)
    text += fmt::format("{:<{}} {:<8} {:>5} {:>8.2f} {:>7.0f}%  {}\n", sum.name, width, sum.direction, sum.parts,
                        sum.ms, 100 * sum.covered_ms / sum.ms, longest_first(sum.under));
  return text;
}

std::string timeline_chart(const ir::Plan& plan) {
  double end = 0;
  for (const ir::Interval& when : plan.predicted) end = std::max(end, when.end);
  if (end <= 0) return "";
  std::string text = fmt::format(
      "predicted step, {:.2f} ms a column: f forward, x gradients of activations, w of weights, "
      "u updates, a all-to-all, gather or sum of activations, r all-reduce, . less than half{}\n",
      end / columns, ir::crosses_steps(plan.program) ? "; v updates and s all-reduces of the step before" : "");
  for (ir::Stream stream : {ir::Stream::compute, ir::Stream::expert, ir::Stream::reduce})
    text += fmt::format("{:<8}|{}|\n", ir::name(stream), stream_row(plan, stream, end));
  return text + fmt::format("{:<8} 0{:>{}}\n", "", fmt::format("{:.1f} ms", end), columns - 1);
}

}  // namespace lancet::cli
