// What is recomputed is chosen for the step without overlap, before a policy schedules it (RecomputeChoices). A policy
// that overlaps more may keep more alive at once, so it plans the step with several choices, from none on: each needs a
// fixed share of the memory of the step that keeps everything, whatever the budget is. The fastest plan that fits is
// taken. Where the memory does not bind the plan that keeps everything, no other is made; elsewhere choices end where
// their computation alone takes longer than the best plan. If sequential with what it has to recompute is shorter, or
// no plan of the policy fits, sequential runs.
#include "within_memory.h"

#include <fmt/format.h>
#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "lancet/cost/costs.h"
#include "lancet/ops/catalogue.h"
#include "lancet/schedule/plan_memory.h"
#include "lancet/schedule/schedule_report.h"
#include "policies.h"

namespace lancet::planner {

// A greedy search. The step with the choice up to here has a peak of values alive at once, if it runs in program order,
// beside what other micro batches in flight keep from their forward to their backward pass.
// The next value to recompute is the one that takes most from what is alive above a level a little below this peak,
// added up over the instructions, for each millisecond that it costs. Both are exact for the whole choice: that a chain
// of values has to be recomputed, or that operands have to be kept longer, is counted. The search ends where no further
// value lowers the peak.
//
// Values are tried in the order of what they were worth when last tried, until one is still worth more than the next
// one was: what a value is worth changes little from choice to choice. A choice does not depend on the memory that is
// asked for, so less memory recomputes what more memory does, and more.
namespace {

using ir::TensorId;

// The level is below the peak by this share of it.
constexpr std::int64_t depth = 16;
// Milliseconds that recomputing a value costs at least.
constexpr double least_ms = 1e-4;

// The lives of blocks of memory, from the first to the last place that touches each.
class Lives {
 public:
  explicit Lives(std::size_t blocks) : first_(blocks, never), last_(blocks) {}
  void touch(std::int32_t block, std::size_t place) {
    if (block < 0) return;
    first_[std::size_t(block)] = std::min(first_[std::size_t(block)], place);
    last_[std::size_t(block)] = std::max(last_[std::size_t(block)], place);
  }
  // Bytes of what is alive both before the place and from it on.
  std::int64_t across(std::size_t place, const auto& bytes) const {
    std::int64_t sum = 0;
    for (std::size_t block = 0; block < first_.size(); ++block)
      if (first_[block] < place && last_[block] >= place) sum += bytes(block);
    return sum;
  }
  // Bytes alive at each of `places` places. bytes: by block.
  std::vector<std::int64_t> alive(std::size_t places, const auto& bytes) const {
    std::vector<std::int64_t> alive(places + 1);
    for (std::size_t block = 0; block < first_.size(); ++block) {
      if (first_[block] == never) continue;
      alive[first_[block]] += bytes(block);
      alive[std::min(last_[block] + 1, places)] -= bytes(block);
    }
    for (std::size_t i = 1; i < places; ++i) alive[i] += alive[i - 1];
    alive.pop_back();
    return alive;
  }

 private:
  static constexpr std::size_t never = std::numeric_limits<std::size_t>::max();
  std::vector<std::size_t> first_, last_;
};

}  // namespace

bool RecomputeChoice::any() const { return std::ranges::count(chosen, true) > 0; }

StepOrder in_turns() {
  return {[](const ir::Program& step) { return schedule::plan_memory_sequentially(step).arena_bytes; }};
}

std::vector<double> work_times(const ir::Program& program) {
  constexpr double flops_per_byte = 32;  // of a machine that is as busy with products as with moving their operands
  std::vector<double> times;
  for (const ir::Instruction& at : program.instructions) {
    if (!at.body.empty()) {
      times.push_back(0);
      continue;
    }
    const ops::Work work = ops::work(program, at);
    times.push_back(1e-6 * (work.bytes + work.flops / flops_per_byte));
  }
  return times;
}

std::vector<double> times_of(const ir::Program& step, const cost::Costs* costs) {
  if (!costs) return work_times(step);
  const auto op_costs = cost::op_costs(*costs, step);
  if (!op_costs.ok()) return work_times(step);
  std::vector<double> times;
  for (const cost::OpCost& cost : *op_costs) times.push_back(cost.ms + costs->launch_ms());
  return times;
}

RecomputeChoices::RecomputeChoices(const ir::Program& step, std::vector<double> ms, StepOrder order)
    : step_(step), values_(step), ms_(std::move(ms)), order_(std::move(order)), chosen_(step.instructions.size()) {
  for (std::size_t i = 0; i < step.tensors.size(); ++i) {
    const TensorId root = step.root({static_cast<std::int32_t>(i)});
    block_.push_back(step[root].number < 0 ? -1 : root.value);
    bytes_.push_back(ir::bytes(step.tensors[i].type));
  }
  for (std::size_t i = 0; i < chosen_.size(); ++i)
    if (values_.candidates()[i]) queue_.emplace_back(std::numeric_limits<double>::infinity(), i);
  links_.push_back({.peak_bytes = live(chosen_, 0).peak});
}

// Recomputed values have blocks of their own behind those of the step.
RecomputeChoices::Live RecomputeChoices::live(const std::vector<bool>& chosen, std::int64_t level) const {
  const std::vector<passes::Recomputation::Place> order = values_.order(chosen);
  const auto tensors = std::int32_t(block_.size());
  std::vector<bool> is_again(block_.size());
  Lives lives(2 * block_.size());
  const auto read = [&](TensorId id, std::size_t place, bool backward) {
    lives.touch(backward && is_again[id.index()] ? tensors + id.value : block_[id.index()], place);
  };
  for (std::size_t place = 0; place < order.size(); ++place) {
    const auto [instruction, again] = order[place];
    if (again) {
      for (const TensorId id : values_.operands(instruction)) read(id, place, true);
      for (const TensorId id : values_.results(instruction)) {
        is_again[id.index()] = true;
        lives.touch(tensors + id.value, place);
      }
      continue;
    }
    const ir::Instruction& at = step_.instructions[instruction];
    for (const TensorId id : at.operands) read(id, place, instruction >= values_.forward_end());
    for (const TensorId id : at.results) lives.touch(block_[id.index()], place);
  }
  for (const ir::Output& output : step_.outputs) lives.touch(block_[output.tensor.index()], order.size() - 1);
  const auto bytes_of = [&](std::size_t block) {
    return bytes_[block < block_.size() ? block : block - block_.size()];
  };
  std::int64_t others = 0;
  if (order_.in_flight > 1) {
    const auto is_backward = [&](const auto& at) { return at.again || at.instruction >= values_.forward_end(); };
    const auto backward = std::size_t(std::ranges::find_if(order, is_backward) - order.begin());
    others = (order_.in_flight - 1) * lives.across(backward, bytes_of);
  }
  Live result;
  for (const std::int64_t alive : lives.alive(order.size(), bytes_of)) {
    result.peak = std::max(result.peak, alive + others);
    result.above += double(std::max<std::int64_t>(0, alive + others - level));
  }
  return result;
}

// Chooses one value more; false if none lowers the peak.
bool RecomputeChoices::add_link() {
  const std::int64_t peak = links_.back().peak_bytes, level = peak - peak / depth;
  const double above = live(chosen_, level).above;
  const auto is_worth_less = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first : a.second > b.second;
  };
  std::ranges::make_heap(queue_, is_worth_less);
  std::vector<std::pair<double, std::size_t>> worthless;
  while (!queue_.empty()) {
    std::ranges::pop_heap(queue_, is_worth_less);
    auto [_, instruction] = queue_.back();
    queue_.pop_back();
    chosen_[instruction] = true;
    const Live with = live(chosen_, level);
    const double worth = (above - with.above) / std::max(ms_[instruction], least_ms);
    if (worth > 0 && (queue_.empty() || worth >= queue_.front().first)) {
      links_.push_back({.added = instruction, .peak_bytes = with.peak});
      queue_.insert(queue_.end(), worthless.begin(), worthless.end());
      return true;
    }
    chosen_[instruction] = false;
    if (worth > 0) {
      queue_.emplace_back(worth, instruction);
      std::ranges::push_heap(queue_, is_worth_less);
    } else {
      worthless.emplace_back(0, instruction);  // it may be worth something once others are chosen
    }
  }
  queue_ = std::move(worthless);
  return false;
}

const RecomputeChoice& RecomputeChoices::choice_of(std::size_t link) {
  std::optional<RecomputeChoice>& choice = links_[link].choice;
  if (choice) return *choice;
  choice.emplace();
  choice->chosen.resize(chosen_.size());
  for (std::size_t i = 1; i <= link; ++i) choice->chosen[links_[i].added] = true;
  choice->arena_bytes = order_.arena_bytes(values_.run(choice->chosen));
  return *choice;
}

RecomputeChoice RecomputeChoices::within(std::int64_t arena_bytes) {
  for (std::size_t link = 0;; ++link) {
    if (link == links_.size() && !add_link()) break;
    if (links_[link].peak_bytes <= arena_bytes)
      if (const RecomputeChoice& choice = choice_of(link); choice.arena_bytes <= arena_bytes) return choice;
  }
  // No arena is smaller than its peak.
  std::vector<std::size_t> by_peak(links_.size());
  std::iota(by_peak.begin(), by_peak.end(), std::size_t(0));
  std::ranges::sort(by_peak, {}, [&](std::size_t link) { return links_[link].peak_bytes; });
  const RecomputeChoice* least = nullptr;
  for (const std::size_t link : by_peak) {
    if (least && links_[link].peak_bytes >= least->arena_bytes) break;
    const RecomputeChoice& choice = choice_of(link);
    if (!least || choice.arena_bytes < least->arena_bytes) least = &choice;
  }
  RecomputeChoice choice = *least;
  choice.is_least = true;
  return choice;
}

namespace {

constexpr std::int64_t mb = 1'000'000;

// Shares of the arena of the step without overlap that keeps everything.
constexpr double kept_shares[] = {1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0};

class WithinMemory {
 public:
  WithinMemory(const ir::Program& step, const PlanRequest& request, const Pipeline& pipeline, const PlanMaker& make)
      : step_(step),
        request_(request),
        pipeline_(pipeline),
        make_(make),
        times_(times_of(step, request.costs)),
        choices_(step, times_),
        allowed_(request.budget() - schedule::resident_bytes(step)) {}

  Result<ir::Plan> run(PlanReport* report) {
    LANCET_ASSIGN(std::optional<Planned> found, by_policy());
    // No policy is longer than sequential with all that it keeps in this budget, unless parts are forced.
    std::optional<PolicyResult> in_turn;
    if (!found || (found->choice.any() && request_.overlap.parts <= 1)) {
      LANCET_ASSIGN(Planned alone, in_turns());
      if (!alone.report.policies.empty()) in_turn = alone.report.policies.front();
      if (found && alone.over <= 0 && alone.ms() < found->ms())
        alone.report.why =
            fmt::format("sequential recomputes less within {} MB a rank, and is shorter", request_.budget() / mb);
      if (!found || (alone.over <= 0 && alone.ms() < found->ms())) found = std::move(alone);
    }
    if (!report) return std::move(found->plan);
    *report = std::move(found->report);
    report->requested = request_.overlap.policy;
    if (in_turn && !report->policies.empty()) report->policies.front() = *in_turn;
    if (request_.memory_limit > 0 || found->choice.any())
      report->memory = MemoryReport{.limit = request_.budget(),
                                    .bytes = schedule::plan_bytes(found->plan),
                                    .all_kept = request_.budget() - allowed_ + choices_.all_kept_bytes(),
                                    .activations = schedule::kept_bytes(found->plan.program),
                                    .all_activations = schedule::kept_bytes(step_)};
    return std::move(found->plan);
  }

 private:
  struct Planned {
    RecomputeChoice choice;
    ir::Plan plan;
    PlanReport report;
    std::int64_t over = 0;  // bytes above the limit
    double ms() const { return plan.header.real("predicted_ms", 0); }
  };

  // The policy's fastest plan that fits; none: none of those tried does, or it is the one that in_turns() makes.
  Result<std::optional<Planned>> by_policy() {
    std::optional<Planned> best, last;
    if (request_.overlap.policy == sequential) return best;
    for (const double share : kept_shares) {
      const RecomputeChoice choice = choices_.within(std::int64_t(share * double(choices_.all_kept_bytes())));
      if (choice.arena_bytes > allowed_ || (last && last->choice.chosen == choice.chosen)) continue;
      if (best && computation_ms(choice) >= best->ms()) break;
      LANCET_ASSIGN(last, planned(choice, request_.overlap.policy));
      if (last->over <= 0 && !choice.any() && !last->report.memory_binds) return last;
      if (last->over <= 0 && (!best || last->ms() < best->ms())) best = last;
    }
    return best;
  }

  // What no schedule of the step with this choice goes below.
  double computation_ms(const RecomputeChoice& choice) const {
    const double launch_ms = request_.costs ? request_.costs->launch_ms() : 0;
    double ms = 0;
    for (std::size_t i = 0; i < step_.instructions.size(); ++i)
      if (step_.instructions[i].stream == ir::Stream::compute)
        ms += (times_[i] - launch_ms) * (choice.chosen[i] ? 2 : 1);
    return ms;
  }

  // Ends with the choice that needs least.
  Result<Planned> in_turns() {
    for (std::int64_t target = allowed_;;) {
      LANCET_ASSIGN(Planned made, planned(choices_.within(target), sequential));
      if (made.over <= 0) {
        if (request_.overlap.policy != sequential)
          made.report.why = fmt::format("{} runs sequential: no other plan within {} MB a rank was found",
                                        request_.overlap.policy, request_.budget() / mb);
        return made;
      }
      const std::int64_t least = schedule::plan_bytes(made.plan);
      if (made.choice.is_least && request_.memory_limit > 0 && least > request_.memory_limit)
        return memory_limit_too_small(least, request_);
      if (made.choice.is_least) return made;
      target = std::min(target, made.choice.arena_bytes) - made.over;
    }
  }

  Result<Planned> planned(const RecomputeChoice& choice, std::string_view policy) {
    Planned made{.choice = choice, .plan = {}, .report = {}};
    PlanRequest request = request_;
    request.overlap.policy = policy;
    request.compare &= policy != sequential || request_.overlap.policy == sequential;  // others are not planned on it
    Pipeline pipeline = pipeline_;
    ir::Program step = step_;
    if (choice.any())
      step = pipeline.run("recompute", std::move(step), [&](const ir::Program&) { return choices_.program(choice); });
    LANCET_ASSIGN(made.plan, make_(std::move(step), request, std::move(pipeline), &made.report));
    made.over = schedule::plan_bytes(made.plan) - request_.budget();
    return made;
  }

  const ir::Program& step_;
  const PlanRequest& request_;
  const Pipeline& pipeline_;
  const PlanMaker& make_;
  const std::vector<double> times_;  // by instruction
  RecomputeChoices choices_;
  std::int64_t allowed_;  // bytes of the arena
};

}  // namespace

Error memory_limit_too_small(std::int64_t least_bytes, const PlanRequest& request) {
  return config_error(
      fmt::format("train.memory_limit_mb: expected at least {}, with all recomputed that can be, found {}",
                  (least_bytes + mb - 1) / mb, request.memory_limit / mb));
}

Result<ir::Plan> plan_within_memory(const ir::Program& step, const PlanRequest& request, const Pipeline& pipeline,
                                    const PlanMaker& make, PlanReport* report) {
  return WithinMemory(step, request, pipeline, make).run(report);
}

}  // namespace lancet::planner
