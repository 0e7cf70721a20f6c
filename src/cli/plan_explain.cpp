#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "lancet/ir/micro_batches.h"
#include "lancet/ir/stream_times.h"
#include "lancet/ops/catalogue.h"
#include "plan_report.h"

namespace lancet::cli {
namespace {

using planner::PlanReport;
using planner::PolicyResult;

// Lines of at most 100 characters, broken at spaces.
std::string wrapped(const std::string& text) {
  constexpr std::size_t width = 100;
  std::string result, line;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (!line.empty() && line.size() + 1 + word.size() > width) {
      result += line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return result + line + "\n";
}

const PolicyResult& result_of(const PlanReport& report, std::string_view policy) {
  return *std::find_if(report.policies.begin(), report.policies.end(),
                       [&](const PolicyResult& result) { return result.policy == policy; });
}

bool has(const ir::Program& program, ops::Kind kind) {
  return std::ranges::any_of(program.instructions, [&](const ir::Instruction& at) { return ops::kind(at) == kind; });
}

// The communication of activations, of which there may be none.
std::string what_travels(const run::PlannedStep& planned) {
  const ir::Program& program = planned.plan.program;
  const bool all_to_alls = has(program, ops::Kind::all_to_all), collectives = has(program, ops::Kind::collective);
  std::string text =
      all_to_alls
          ? "Experts are on different ranks. In each MoE layer an all-to-all carries every token to the rank of "
            "its expert, a second one carries the results back; the backward pass does both again. "
          : "Every rank holds all experts: there is no all-to-all. ";
  if (collectives)
    text +=
        "Tensors are split over the ranks: where an op cannot work on its rank's shard alone, a collective joins "
        "the shards, adds up summands or splits the tensor along another dimension. ";
  if (all_to_alls || collectives)
    text +=
        fmt::format("Without overlap the {} ranks spend {:.1f} ms a step on {}. ", planned.plan.header.integer("ranks"),
                    result_of(planned.report, "sequential").timeline.all_to_all,
                    all_to_alls && collectives ? "all of these" : "them");
  return text;
}

// True if each rank updates its shard of the weights.
bool divides_updates(const ir::Program& program) {
  return std::ranges::any_of(program.tensors, [](const ir::Tensor& tensor) { return !tensor.flat_shard.empty(); });
}

std::string what_happens(const run::PlannedStep& planned) {
  if (planned.plan.header.integer("ranks") == 1)
    return "One rank holds all experts: it has no all-to-all, and nothing to hide.\n";
  const schedule::Timeline& t = result_of(planned.report, "sequential").timeline;
  const ir::Program& program = planned.plan.program;
  std::string text = what_travels(planned);
  text += fmt::format(
      "Sums of gradients, of their norm and of the logged numbers{} take {:.1f} ms. Communication is exposed while "
      "nothing is computed beside it, and hidden otherwise.",
      divides_updates(program) ? ", and the weights that each rank has updated for the others (train.zero)," : "",
      t.all_reduce);
  return wrapped(text);
}

std::string what_policies_do() {
  std::string text = "The policies compute the same numbers, in another order:\n";
  for (const planner::PolicyInfo& policy : planner::policies())
    text += fmt::format("  {:<22} {}\n", policy.name, policy.what);
  return text;
}

std::string why_chosen(const PlanReport& report) {
  const PolicyResult &chosen = result_of(report, report.chosen), &plain = result_of(report, "sequential");
  const auto fastest = std::min_element(
      report.policies.begin(), report.policies.end(),
      [](const PolicyResult& a, const PolicyResult& b) { return a.timeline.makespan < b.timeline.makespan; });
  std::string text = fmt::format("{} runs: ", chosen.policy);
  if (!report.why.empty())
    text += report.why + ".";
  else if (report.requested == "auto")
    text += "overlap.policy is auto, and its predicted step is the shortest of those that auto compares.";
  else
    text += fmt::format("overlap.policy is {}.", report.requested);
  if (chosen.policy != plain.policy)
    text += fmt::format(
        " Against sequential it saves {:.1f} of {:.1f} ms ({:.1f}%): {:.1f} ms of communication are "
        "exposed where it was {:.1f}.",
        plain.timeline.makespan - chosen.timeline.makespan, plain.timeline.makespan,
        100 * (1 - chosen.timeline.makespan / plain.timeline.makespan), chosen.timeline.exposed,
        plain.timeline.exposed);
  if (report.requested != "auto" && fastest->timeline.makespan < chosen.timeline.makespan * (1 - 1e-9))
    text += fmt::format(" {} would be faster: {:.1f} ms.", fastest->policy, fastest->timeline.makespan);
  return wrapped(text);
}

// The bound counts whole operations. Operations in parts may take less, so a plan in parts can be shorter.
std::string what_bounds(const run::PlannedStep& planned) {
  const planner::LowerBound& bound = planned.report.lower_bound;
  const double above = 100 * (result_of(planned.report, planned.report.chosen).timeline.makespan / bound.ms() - 1);
  const bool compute = bound.compute >= bound.network;
  const std::string distance = above >= 0 ? fmt::format("{:.1f}% above that bound", above)
                                          : "below that bound, since its parts take less time than whole operations";
  return wrapped(fmt::format(
      "The {} bounds this step: no order of its whole operations is shorter than the larger of what a rank computes "
      "({:.1f} ms, moving bytes included) and what the network carries ({:.1f} ms). The plan is {}. Only a faster {} "
      "makes the bound lower.",
      compute ? "processor" : "network", bound.compute, bound.network, distance, compute ? "device" : "network"));
}

// The blocks of the model that a stage has.
std::string blocks_in(const ir::Program& program) {
  std::set<int> blocks;
  for (const ir::Instruction& at : program.instructions)
    if (const auto block = ir::block_of(at.label); block && at.stream == ir::Stream::compute) blocks.insert(*block);
  std::string text;
  for (auto first = blocks.begin(); first != blocks.end();) {
    auto last = first;
    while (std::next(last) != blocks.end() && *std::next(last) == *last + 1) ++last;
    text += text.empty() ? "" : ", ";
    text += first == last ? fmt::format("h.{}", *first) : fmt::format("h.{} to h.{}", *first, *last);
    first = std::next(last);
  }
  return blocks.empty() ? "no block" : text;
}

}  // namespace

std::string stage_explanation(const run::PlannedStep& planned, const ir::Mesh& mesh) {
  const int micro_batches = ir::micro_batches(planned.plan.program);
  std::string text = wrapped(fmt::format(
      "The model is cut into {} stages, through which {} in each run of the plan, in the order of "
      "train.pipeline_schedule = "
      "{}. What one stage makes and another one reads crosses from neighbour to neighbour, on streams of its own: it "
      "costs time only where its reader waits for it. Communication is exposed while its stage computes nothing "
      "beside it, and hidden otherwise.",
      planned.stages.size(),
      micro_batches == 1 ? "one micro batch passes" : fmt::format("{} micro batches pass", micro_batches),
      planned.stage_times.how));
  for (std::size_t stage = 0; stage < planned.stages.size(); ++stage) {
    const ir::Plan& plan = planned.stages[stage];
    const auto times = ir::stream_times(plan.program, std::span<const ir::Interval>(plan.predicted));
    text += fmt::format("\nstage {} ({}): {:.1f} ms of communication, {:.1f} ms of them exposed\n{}{}", stage,
                        blocks_in(plan.program), times.communication, times.exposed,
                        cover_table(report::communications(plan)), communication_table(plan, mesh));
  }
  return text;
}

std::string explanation(const run::PlannedStep& planned) {
  return fmt::format("{}\n{}\n{}\n{}", what_happens(planned), what_policies_do(), why_chosen(planned.report),
                     what_bounds(planned));
}

}  // namespace lancet::cli
