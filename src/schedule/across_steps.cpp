// How a schedule across the border is made. What is left of the step before comes first in a list, the rest of the step
// after it: the dependencies of that list say what each instruction of the step has to wait for. Walk then goes through
// the step in its order and inserts what is left: a sum of gradients before the first message that would start later,
// an update where the compute stream waits for the network, and each at the latest before the first instruction that
// depends on it. Its times ignore that streams slow each other down; simulate.h adds that when it evaluates the list.
//
// The search tries to leave all that starts after a number of times in the step, in each case without what the next
// step uses before a number of times in it: gradients of the first layers are made last and needed first. For the best
// few of these choices, list scheduling also orders the whole list again under a grid of settings, as in
// order_search.cpp.
#include "lancet/schedule/overlap.h"
#include "lancet/schedule/simulate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <ranges>
#include <set>

#include "lancet/ir/dependencies.h"
#include "lancet/ir/micro_batches.h"
#include "lancet/ops/catalogue.h"
#include "lancet/schedule/plan_memory.h"
#include "orders.h"
#include "split_search.h"

namespace lancet::schedule {
namespace {

using ir::id_of;
using ir::InstructionId;
using ir::Stream;
using ir::TensorId;

constexpr double never = std::numeric_limits<double>::infinity();
constexpr double cannot = -1;

// What is left is not used in the first share of the next step.
constexpr double unused[] = {0, 0.01, 0.1};
// The number of times from which on what starts is left.
constexpr std::size_t most_begins = 8;
// How many choices are ordered again, with each of the short leads.
constexpr std::size_t ordered_again = 4;
// The gain, as a share of the step, below which a step ends before the next one begins.
constexpr double least_gain = 2e-3;

// By tensor: memory that an output other than the norm of the gradients is in.
std::vector<bool> reported(const ir::Program& program) {
  std::vector<bool> reported(program.tensors.size());
  for (const ir::Output& output : program.outputs)
    if (output.kind != ir::OutputKind::norm) reported[program.root(output.tensor).index()] = true;
  return reported;
}

// By tensor: memory of the norm of the gradients.
std::vector<bool> norms(const ir::Program& program) {
  std::vector<bool> norms(program.tensors.size());
  for (const ir::Output& output : program.outputs)
    if (output.kind == ir::OutputKind::norm) norms[program.root(output.tensor).index()] = true;
  return norms;
}

// True if updates read what the norm of the gradients decides.
bool updates_wait_for_norm(const ir::Program& program) {
  std::vector<bool> follows = norms(program);
  for (InstructionId id : ir::in_step_order(program)) {
    const ir::Instruction& at = program.instructions[id.index()];
    if (!std::ranges::any_of(at.operands, [&](TensorId id) { return bool(follows[program.root(id).index()]); }))
      continue;
    if (!at.writes.empty()) return true;
    for (TensorId id : at.results) follows[program.root(id).index()] = true;
  }
  return false;
}

// By tensor: the start of the first instruction that uses its memory and does not close the step.
std::vector<double> times_of_use(const Candidate& candidate, const std::vector<bool>& closes) {
  const ir::Program& program = candidate.program;
  std::vector<double> used(program.tensors.size(), never);
  for (std::size_t i = 0; i < closes.size(); ++i) {
    const ir::Instruction& at = program.instructions[i];
    for (const auto* list : {&at.operands, &at.results})
      for (TensorId id : *list)
        if (double& first = used[program.root(id).index()]; !closes[i])
          first = std::min(first, candidate.timeline.when[i].start);
  }
  return used;
}

// What is left of the step before, then the rest; `source` says which instruction of the candidate each is.
struct Rotated {
  ir::Program program;
  Order source;
  std::size_t left = 0;  // how many are of the step before
};

std::string separated(const std::string& how) { return how.empty() ? "" : how + "; "; }

Rotated rotated(const ir::Program& step, const std::vector<bool>& left) {
  Rotated result{{}, {}, std::size_t(std::ranges::count(left, true))};
  for (const bool of_left : {true, false})
    for (std::size_t i = 0; i < left.size(); ++i)
      if (left[i] == of_left) result.source.push_back(id_of(i));
  ir::Program& program = result.program;
  program = permuted(step, result.source);
  std::vector<TensorId> before(step.tensors.size());  // by input, that of the step before
  for (std::size_t i = 0; i < result.left; ++i) {
    ir::Instruction& at = program.instructions[i];
    at.micro_batch = ir::step_before;
    for (TensorId& id : at.operands) {
      const ir::Tensor input = program[id];
      if (input.kind != ir::TensorKind::input) continue;
      TensorId& mine = before[id.index()];
      if (!mine.valid())
        mine = program.add_named(input.kind, ir::of_micro_batch(input.name, ir::step_before), input.type);
      id = mine;
    }
  }
  return result;
}

// Finds the order of a rotated list.
class Walk {
 public:
  Walk(const Rotated& list, const Candidate& candidate, const std::vector<double>& first_uses)
      : program_(list.program),
        left_(list.left),
        dependencies_(ir::dependencies(program_)),
        ms_(dependencies_.size()),
        first_use_(list.left),
        end_(dependencies_.size()),
        placed_(dependencies_.size()) {
    for (std::size_t i = 0; i < ms_.size(); ++i) ms_[i] = candidate.op_costs[list.source[i].index()].ms;
    for (std::size_t i = 0; i < left_; ++i) {
      first_use_[i] = first_uses[list.source[i].index()];
      waiting_.insert({first_use_[i], i});
    }
  }

  Order run() {
    for (std::size_t i = left_; i < placed_.size(); ++i) {
      for (InstructionId before : dependencies_[i])
        if (before.index() < left_) place_left(before.index());
      fill_until(start_of(i), stream_of(i));
      place(i);
    }
    while (!waiting_.empty()) place_left(waiting_.begin()->second);
    return std::move(order_);
  }

 private:
  static std::size_t index(Stream stream) { return static_cast<std::size_t>(stream); }
  Stream stream_of(std::size_t i) const { return program_.instructions[i].stream; }

  bool is_ready(std::size_t i) const {
    return std::ranges::all_of(dependencies_[i], [&](InstructionId id) { return bool(placed_[id.index()]); });
  }
  // Once all that it depends on is placed. Messages take turns on the network.
  double start_of(std::size_t i) const {
    const bool sends = stream_of(i) != Stream::compute;
    double start = sends ? std::max(free_[1], free_[2]) : free_[0];
    for (InstructionId before : dependencies_[i]) start = std::max(start, end_[before.index()]);
    return start;
  }

  void place(std::size_t i) {
    end_[i] = free_[index(stream_of(i))] = start_of(i) + ms_[i];
    placed_[i] = true;
    order_.push_back(id_of(i));
  }

  // With what it depends on; nothing if it is placed.
  void place_left(std::size_t i) {
    if (placed_[i]) return;
    for (InstructionId before : dependencies_[i]) place_left(before.index());
    place(i);
    waiting_.erase({first_use_[i], i});
  }

  // Places what can run before an instruction that starts at `time`: messages that start earlier, and computation that
  // ends before a computation has to begin.
  void fill_until(double time, Stream stream) {
    for (auto next = waiting_.begin(); next != waiting_.end();) {
      const std::size_t i = next->second;
      const bool sends = stream_of(i) != Stream::compute;
      const bool fits =
          is_ready(i) && (sends ? start_of(i) < time : stream == Stream::compute && start_of(i) + ms_[i] <= time);
      if (!fits) {
        ++next;
        continue;
      }
      place(i);
      waiting_.erase(next);
      next = waiting_.begin();  // others may be ready now
    }
  }

  const ir::Program& program_;
  const std::size_t left_;
  const Dependencies dependencies_;
  std::vector<double> ms_, first_use_, end_;
  std::vector<bool> placed_;
  std::set<std::pair<double, std::size_t>> waiting_;  // of the step before, by first use
  std::array<double, ir::stream_count> free_{};
  Order order_;
};

// What the candidate adds to the dependencies of instructions that are of this step, in the new order.
Dependencies kept(const Candidate& candidate, const std::vector<bool>& left, const Order& source) {
  std::vector<InstructionId> position(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) position[source[i].index()] = id_of(i);
  Dependencies result(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (left[i]) continue;
    for (InstructionId before : candidate.needed[i])
      if (!left[before.index()]) result[position[i].index()].push_back(position[before.index()]);
  }
  return result;
}

std::string describe(const ir::Program& program) {
  std::size_t sums = 0, gathers = 0, updates = 0;
  for (const ir::Instruction& at : program.instructions) {
    if (!ir::of_step_before(at)) continue;
    const bool gather = ops::kind(at) == ops::Kind::flat_all_gather;
    gathers += gather;
    sums += at.stream == Stream::reduce && !gather;
    updates += !at.writes.empty() && !gather;
  }
  std::vector<std::string> items;
  const auto add = [&](std::size_t count, std::string_view what, std::string_view rest) {
    if (count > 0) items.push_back(fmt::format("{} {}{}{}", count, what, count == 1 ? "" : "s", rest));
  };
  add(sums, "message", " of gradients");
  add(updates, "update", "");
  add(gathers, "gather", " of weights");
  if (items.empty()) items.push_back("the norm of the gradients");
  return fmt::format("{} in the next step", fmt::join(items, ", "));
}

class BorderSearch {
 public:
  BorderSearch(const Step& step, const Candidate& candidate)
      : step_(step), candidate_(candidate), first_uses_(first_uses(candidate)) {}

  // Without those that are no shorter than the candidate, the shortest first.
  std::vector<Candidate> run() {
    for (const double begin : begins())
      for (const double end : unused) try_to_leave(begin, end * candidate_.timeline.makespan);
    std::ranges::stable_sort(tried_, {}, [](const Tried& tried) { return tried.makespan; });
    if (ir::micro_batches(candidate_.program) == 1)
      for (std::size_t i = 0; i < std::min(ordered_again, tried_.size()); ++i)
        if (sends(tried_[i].left)) order_again(tried_[i].left);
    std::ranges::stable_sort(found_, {}, [](const Candidate& found) { return found.timeline.makespan; });
    return std::move(found_);
  }

 private:
  struct Tried {
    std::vector<bool> left;
    double makespan = 0;
  };

  // The starts of messages that may be left, evenly chosen if they are many, and the end of the backward pass.
  std::vector<double> begins() const {
    std::vector<double> messages, chosen;
    double last = 0;
    for (std::size_t i = 0; i < first_uses_.size(); ++i) {
      const ir::Instruction& at = candidate_.program.instructions[i];
      const ir::Interval& when = candidate_.timeline.when[i];
      if (at.stream != Stream::compute && first_uses_[i] >= 0) messages.push_back(when.start);
      if (at.role == ir::Role::dx || at.role == ir::Role::dw) last = std::max(last, when.end);
    }
    const std::size_t count = std::min(most_begins, messages.size());
    for (std::size_t i = 0; i < count; ++i) chosen.push_back(messages[i * messages.size() / count]);
    chosen.push_back(last);
    return chosen;
  }

  // Keeps it if it is worth it, and with one message on the network at a time. Returns the shorter makespan.
  double add(Candidate one) {
    Candidate alone = one_message_at_a_time(step_, one);
    const double most = candidate_.timeline.makespan * (1 - least_gain);
    const double makespan = std::min(one.timeline.makespan, alone.timeline.makespan);
    if (one.timeline.makespan < most) found_.push_back(std::move(one));
    if (alone.timeline.makespan < most) found_.push_back(std::move(alone));
    return makespan;
  }

  // What starts at `begin` or later and is used at `used` or later in the next step.
  void try_to_leave(double begin, double used) {
    std::vector<bool> left(first_uses_.size());
    for (std::size_t i = 0; i < left.size(); ++i)
      left[i] = first_uses_[i] >= used && candidate_.timeline.when[i].start >= begin;
    const auto same = [&](const Tried& tried) { return tried.left == left; };
    if (std::ranges::count(left, true) == 0 || std::ranges::any_of(tried_, same)) return;
    const double makespan = add(with_end_in_next_step(step_, candidate_, left, first_uses_));
    tried_.push_back({std::move(left), makespan});
  }

  bool sends(const std::vector<bool>& left) const {
    for (std::size_t i = 0; i < left.size(); ++i)
      if (left[i] && candidate_.program.instructions[i].stream != Stream::compute) return true;
    return false;
  }

  // By list scheduling, with the memory of the step without parts and of what crosses the border.
  void order_again(const std::vector<bool>& left) {
    const Rotated list = rotated(candidate_.program, left);
    std::int64_t memory = step_.peak_bytes();
    const std::vector<bool> crosses = ir::crossing_memory(list.program);
    for (std::size_t i = 0; i < crosses.size(); ++i)
      if (crosses[i]) memory += ir::bytes(list.program.tensors[i].type);
    const Orders orders(list.program, permuted(candidate_.op_costs, list.source));
    double best = candidate_.timeline.makespan;
    for (const bool feed_network : {false, true})
      for (const double lead : short_leads) {
        const Orders::Found order =
            orders.find({.lead = lead, .backward_lead = lead, .feed_network = feed_network, .memory_bytes = memory});
        if (order.makespan >= best) continue;  // list schedules are shorter than simulated steps
        ir::Program program = orders.program(order.order);
        std::string how = separated(candidate_.how) + describe(program);
        best = std::min(best, add(as_it_is(step_, std::move(how), std::move(program), orders.op_costs(order.order),
                                           orders.needed(order.order))));
      }
  }

  const Step& step_;
  const Candidate& candidate_;
  const std::vector<double> first_uses_;  // by instruction
  std::vector<Tried> tried_;
  std::vector<Candidate> found_;
};

}  // namespace

std::vector<bool> may_cross_steps(const ir::Program& program) {
  std::vector<bool> may = ir::closes_step(program);
  if (!updates_wait_for_norm(program)) return may;
  std::vector<bool> needed = norms(program);  // by tensor: memory that the norm is made of
  const auto is_needed = [&](TensorId id) { return bool(needed[program.root(id).index()]); };
  const Order order = ir::in_step_order(program);
  for (InstructionId id : order | std::views::reverse) {
    const ir::Instruction& at = program.instructions[id.index()];
    if (std::ranges::none_of(at.results, is_needed) && std::ranges::none_of(at.writes, is_needed)) continue;
    may[id.index()] = false;
    for (TensorId operand : at.operands) needed[program.root(operand).index()] = true;
  }
  return may;
}

std::vector<double> first_uses(const Candidate& candidate) {
  const ir::Program& program = candidate.program;
  const std::vector<bool> closes = ir::closes_step(program), is_reported = reported(program);
  const std::vector<bool> may_cross = may_cross_steps(program);
  const std::vector<double> used = times_of_use(candidate, closes);
  const Dependencies dependencies = ir::dependencies(program);
  std::vector<double> first(closes.size(), never);
  for (std::size_t i = closes.size(); i-- > 0;) {
    const ir::Instruction& at = program.instructions[i];
    for (const auto* written : {&at.results, &at.writes})
      for (TensorId id : *written) {
        const TensorId root = program.root(id);
        const ir::TensorKind kind = program[root].kind;
        if (is_reported[root.index()]) first[i] = cannot;
        if (kind == ir::TensorKind::parameter || kind == ir::TensorKind::state)
          first[i] = std::min(first[i], used[root.index()]);
      }
    if (!may_cross[i]) first[i] = cannot;
    for (InstructionId before : dependencies[i]) first[before.index()] = std::min(first[before.index()], first[i]);
  }
  return first;
}

Candidate with_end_in_next_step(const Step& step, const Candidate& candidate, const std::vector<bool>& left,
                                const std::vector<double>& first_uses) {
  Rotated list = rotated(candidate.program, left);
  const Order order = Walk(list, candidate, first_uses).run();
  const Order source = permuted(list.source, order);
  ir::Program program = permuted(std::move(list.program), order);
  Dependencies needed = ir::dependencies(program);
  join(needed, kept(candidate, left, source));
  std::string how = separated(candidate.how) + describe(program);
  return as_it_is(step, std::move(how), std::move(program), permuted(candidate.op_costs, source), std::move(needed));
}

Candidate across_steps(const Step& step, const config::Overlap& overlap, Candidate candidate) {
  std::vector<Candidate> found = BorderSearch(step, candidate).run();
  if (found.empty()) {
    candidate.why_not_across_steps =
        fmt::format("nothing left to the next step makes a step {:.1f}% shorter", 100 * least_gain);
    return candidate;
  }
  const std::int64_t own = arena_bytes(candidate.program, candidate.needed);
  for (Candidate& one : found)
    if (fits_memory(step, overlap, one) || arena_bytes(one.program, one.needed) <= own) return std::move(one);
  candidate.why_not_across_steps = fmt::format(
      "nothing can be left to the next step within the memory that a plan may take; with more a step is {:.1f}% "
      "shorter",
      100 * (1 - found[0].timeline.makespan / candidate.timeline.makespan));
  return candidate;
}

}  // namespace lancet::schedule
