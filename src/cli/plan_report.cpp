#include "plan_report.h"

#include <fmt/format.h>
#include <algorithm>
#include <map>

#include "lancet/ir/dependencies.h"
#include "lancet/ir/micro_batches.h"
#include "lancet/schedule/plan_memory.h"
#include "lancet/schedule/schedule_report.h"

namespace lancet::cli {
namespace {

std::string in_megabytes(std::int64_t bytes) { return fmt::format("{:.1f}", double(bytes) * 1e-6); }

double hidden_percent(const schedule::Timeline& t) {
  return t.communication > 0 ? 100 * (1 - t.exposed / t.communication) : 0;
}

char letter(const ir::Instruction& instruction) {
  if (instruction.stream == ir::Stream::expert) return 'a';
  if (ir::of_step_before(instruction)) return instruction.stream == ir::Stream::reduce ? 's' : 'v';
  if (instruction.stream == ir::Stream::reduce) return 'r';
  if (instruction.role == ir::Role::forward) return 'f';
  if (instruction.role == ir::Role::dx) return 'x';
  if (instruction.role == ir::Role::recompute) return 'c';
  return instruction.role == ir::Role::dw ? 'w' : 'u';
}

constexpr std::size_t columns = 100;

// A line where the chosen policy is shorter than all others by less than predictions can tell; else empty.
std::string nearest_policy(const planner::PlanReport& report) {
  const planner::PolicyResult *chosen = nullptr, *nearest = nullptr;
  for (const planner::PolicyResult& result : report.policies)
    if (const planner::PolicyResult*& best = result.policy == report.chosen ? chosen : nearest;
        result.fits && (!best || result.timeline.makespan < best->timeline.makespan))
      best = &result;
  if (!chosen || !nearest) return "";
  const double longer = nearest->timeline.makespan / chosen->timeline.makespan - 1;
  if (longer < 0 || longer >= planner::prediction_error) return "";
  return fmt::format("nearest: {} is {:.1f}% longer; predicted gains are off by up to {:.0f}% on emulated devices\n",
                     nearest->policy, 100 * longer, 100 * planner::prediction_error);
}

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
  const auto shown = [&](const std::string& policy) { return policy + (policy == report.chosen ? " *" : ""); };
  std::size_t width = 16;
  for (const planner::PolicyResult& result : report.policies) width = std::max(width, shown(result.policy).size());
  std::string text =
      fmt::format("{:<{}} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>2} {:>8}  {}\n", "policy", width, "step ms", "compute",
                  "a2a", "reduce", "exposed", "hidden", "k", "arena MB", "schedule");
  for (const planner::PolicyResult& result : report.policies) {
    const schedule::Timeline& t = result.timeline;
    text += fmt::format("{:<{}} {:>9.1f} {:>9.1f} {:>9.1f} {:>9.1f} {:>9.1f} {:>6.0f}% {:>2} {:>8}  {}\n",
                        shown(result.policy), width, t.makespan, t.compute, t.all_to_all, t.all_reduce, t.exposed,
                        hidden_percent(t), result.parts, in_megabytes(result.arena_bytes),
                        result.how + (result.fits ? "" : "; more than the memory allows"));
  }
  const planner::LowerBound& bound = report.lower_bound;
  if (bound.ms() > 0)  // else the plan is from a file
    text +=
        fmt::format("{:<{}} {:>9.1f} {:>9.1f} {:>44} of whole operations: compute; a network of {:.1f} ms{}\n", "bound",
                    width, bound.ms(), bound.compute, "", bound.network,
                    bound.in_turn > 0
                        ? fmt::format("; forward pass, sums of gradients and updates in turn, {:.1f} ms", bound.in_turn)
                        : "");
  if (report.memory && report.memory->activations < report.memory->all_activations)
    text += "rows but that of sequential: of the step with what the plan recomputes\n";
  text += nearest_policy(report);
  if (!report.why.empty()) text += fmt::format("why: {}\n", report.why);
  if (!report.why_not_across_steps.empty())
    text += fmt::format("border: each step ends before the next one begins: {}\n", report.why_not_across_steps);
  return text;
}

std::string schedule_text(const run::PlannedStep& planned) {
  const std::int32_t micro_batches = ir::micro_batches(planned.plan.program);
  std::string text = fmt::format("* {} runs: {} instructions{}, arena {} MB\n", planned.report.chosen,
                                 planned.plan.program.instructions.size(),
                                 micro_batches > 1 ? fmt::format(" of {} micro batches", micro_batches) : "",
                                 in_megabytes(planned.plan.arena_bytes));
  const auto ranges = schedule::split_ranges(planned.plan.program);
  for (const schedule::SplitRange& range : ranges)
    text += fmt::format("  {:<8} in {} parts: {} to {}\n", schedule::pass_of(range.role), range.parts, range.first,
                        range.last);
  if (ranges.empty()) text += "  nothing is split in parts\n";
  if (std::ranges::any_of(planned.plan.program.instructions, [](const ir::Instruction& at) {
        return ir::is_repeat(at) && at.role != ir::Role::forward && at.attributes.has("parts");
      }))
    text += "  further rounds, where experts get more than buffers hold, sum experts' weight gradients part by part\n";
  if (const auto left = std::ranges::count_if(planned.plan.program.instructions, ir::of_step_before); left > 0)
    text += fmt::format(
        "  {} instructions end the step before: sums of gradients and updates, marked @-1 in the plan\n", left);
  return text;
}

std::string memory_text(const run::PlannedStep& planned) {
  std::string text;
  if (const auto& memory = planned.report.memory)
    text += fmt::format(
        "limit: {} MB a rank of {} MB; the sequential step that keeps all activations needs {} MB\n"
        "kept for the backward pass: {} of {} MB of activations\n",
        in_megabytes(memory->bytes), in_megabytes(memory->limit), in_megabytes(memory->all_kept),
        in_megabytes(memory->activations), in_megabytes(memory->all_activations));
  const auto sites = schedule::recomputed_sites(planned.plan.program, planned.plan.predicted);
  if (sites.empty()) return text;
  double ms = 0, beside_ms = 0;
  std::string rows;
  for (const schedule::RecomputedSite& site : sites) {
    ms += site.ms;
    beside_ms += site.beside_ms;
    rows +=
        fmt::format("{:>5} {:<20} {:>8.2f} {:>8.2f}  {}\n", site.count, site.op, site.ms, site.beside_ms, site.place);
  }
  return text +
         fmt::format(
             "recomputed in the backward pass: {:.2f} ms, of which {:.2f} ms are beside communication\n"
             "{:>5} {:<20} {:>8} {:>8}  what\n",
             ms, beside_ms, "count", "op", "ms", "beside") +
         rows;
}

std::string cover_table(const std::vector<report::Communication>& communications) {
  if (communications.empty()) return "no communication takes time\n";
  std::size_t width = std::string_view("communication").size();
  for (const report::Communication& row : communications) width = std::max(width, row.site.size());
  std::string text = fmt::format("{:<{}} {:<8} {:>5} {:>8} {:>8}  {}\n", "communication", width, "", "parts", "ms",
                                 "covered", "by what (ms)");
  for (const report::Communication& row : communications) {
    std::string place = fmt::format("{:<{}} {:<8} {:>5}", row.site, width, row.pass, row.parts);
    for (const auto& [times, label] : {std::pair(row.predicted, ""), std::pair(row.measured, "measured: ")}) {
      if (!times) continue;
      text += fmt::format("{} {:>8.2f} {:>7.0f}%  {}{}\n", place, times->ms, 100 * times->hidden_ms / times->ms, label,
                          times->by);
      place.assign(place.size(), ' ');  // the place stands in its first line
    }
  }
  return text;
}

std::string timeline_chart(const ir::Plan& plan) {
  double end = 0;
  for (const ir::Interval& when : plan.predicted) end = std::max(end, when.end);
  if (end <= 0) return "";
  std::string text = fmt::format(
      "predicted step, {:.2f} ms a column: f forward, x gradients of activations, w of weights, "
      "u updates, a all-to-all, gather or sum of activations, r all-reduce, . less than half{}{}\n",
      end / columns,
      std::ranges::any_of(plan.program.instructions, [](const auto& at) { return at.role == ir::Role::recompute; })
          ? "; c recomputed"
          : "",
      ir::crosses_steps(plan.program) ? "; v updates and s all-reduces of the step before" : "");
  for (ir::Stream stream : {ir::Stream::compute, ir::Stream::expert, ir::Stream::reduce})
    text += fmt::format("{:<8}|{}|\n", ir::name(stream), stream_row(plan, stream, end));
  return text + fmt::format("{:<8} 0{:>{}}\n", "", fmt::format("{:.1f} ms", end), columns - 1);
}

std::string stage_table(const run::PlannedStep& planned) {
  const planner::StageReport& times = planned.stage_times;
  std::string text =
      fmt::format("{:<8} {:>9} {:>9} {:>9} {:>7} {:>8} {:>9} {:>10} {:>8} {:>12}\n", "stage", "step ms", "compute",
                  "bubble", "", "arena MB", "memory MB", "recomputed", "beside", "instructions");
  double end = 0;
  for (std::size_t stage = 0; stage < planned.stages.size(); ++stage) {
    const ir::Plan& plan = planned.stages[stage];
    double recomputed_ms = 0, beside_ms = 0;
    for (const schedule::RecomputedSite& site : schedule::recomputed_sites(plan.program, plan.predicted)) {
      recomputed_ms += site.ms;
      beside_ms += site.beside_ms;
    }
    text += fmt::format("{:<8} {:>9.1f} {:>9.1f} {:>9.1f} {:>6.1f}% {:>8} {:>9} {:>10.1f} {:>8.1f} {:>12}\n", stage,
                        times.makespan, times.compute[stage], times.bubble[stage],
                        100 * times.bubble[stage] / times.makespan, in_megabytes(plan.arena_bytes),
                        in_megabytes(schedule::plan_bytes(plan)), recomputed_ms, beside_ms,
                        plan.program.instructions.size());
    for (const ir::Interval& when : plan.predicted) end = std::max(end, when.end);
  }
  if (times.least > 0)
    text += fmt::format("{}; no order goes below {:.1f} ms, {:.1f}% less\n", times.how, times.least,
                        100 * (1 - times.least / times.makespan));
  text += fmt::format(
      "\npredicted step, {:.2f} ms a column: f forward, x gradients of activations, w of weights, "
      "u updates, . less than half\n",
      end / columns);
  for (std::size_t stage = 0; stage < planned.stages.size(); ++stage)
    text += fmt::format("{:<8}|{}|\n", fmt::format("stage {}", stage),
                        stream_row(planned.stages[stage], ir::Stream::compute, end));
  return text + fmt::format("{:<8} 0{:>{}}\n", "", fmt::format("{:.1f} ms", end), columns - 1);
}

}  // namespace lancet::cli
