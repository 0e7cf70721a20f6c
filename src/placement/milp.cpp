// How it works. The rows that keep two ops off one device at the same time, and two flows off one link, are most of the
// program, and hardly any of them matters in the end. So it is solved without them first, which gives a bound; then
// pairs that the answer lets run at the same time get their rows, and it is solved again, until an answer needs no more
// or the time is over. Every answer's devices make a placement by our own timetable, so that the best one is known
// whenever the time ends.
#include "lancet/placement/milp.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "lancet/base/check.h"
#include "lancet/base/clock.h"
#include "lancet/placement/linear_solver.h"
#include "lancet/placement/problem.h"
#include "lancet/placement/solvers.h"
#include "milp_model.h"

namespace lancet::placement {
namespace {

constexpr double proof_tolerance = 1e-5;  // relative: what the solver's own tolerances allow

using Clock = std::chrono::steady_clock;

void check_valid(const Problem& problem, const Placement& placement, const char* what) {
  const auto broken = violations(problem, placement);
  LANCET_CHECK(broken.empty(), "{} breaks {} rules, the first: {}", what, broken.size(), broken.front());
}

bool has_values(const LinearAnswer& answer) {
  return answer.status == LinearAnswer::Status::optimal || answer.status == LinearAnswer::Status::feasible;
}

// The shortest of a placement, if it is one, and those of all answers of CBC, none of which is taken on trust: CBC
// keeps to its rows only within tolerances, and the program may lack rows. Each answer has its own order and that of
// the longest chains under its devices.
void shorten(Placement& best, const Problem& problem, const MilpModel& model, const LinearAnswer& solved) {
  const FlowsOfOps flows = flows_of_ops(problem);
  const auto consider = [&](Placement found) {
    if (violations(problem, found).empty() && (best.device.empty() || found.makespan_ms < best.makespan_ms))
      best = std::move(found);
  };
  const auto consider_both = [&](const std::vector<double>& values) {
    consider(milp_placement(model, problem, values));
    const std::vector<int> device = milp_devices(model, problem, values);
    consider(timetable(problem, device, order_by(upward_ranks(problem, flows, device))));
  };
  if (has_values(solved)) consider_both(solved.values);
  for (const std::vector<double>& values : solved.earlier) consider_both(values);
}

Error no_answer(const Problem& problem, const LinearAnswer& answer, double seconds) {
  if (answer.status == LinearAnswer::Status::infeasible)
    return config_error(
        fmt::format("no placement of {} ops on {} devices has enough memory and paths: expected one, "
                    "found a proof that there is none",
                    problem.op_count(), problem.device_count()));
  const char* found = answer.is_time_over  ? "found none"
                      : has_values(answer) ? "found one only within CBC's tolerances"
                                           : "found a failure of CBC";
  return config_error(fmt::format("the integer program: expected a placement within {} s, {}",
                                  seconds < 1 ? fmt::format("{:.3g}", seconds) : fmt::format("{:.1f}", seconds),
                                  found));
}

class MilpSolver {
 public:
  MilpSolver(const Problem& problem, const MilpOptions& options, Clock::time_point begin)
      : problem_(problem),
        options_(options),
        begin_(begin),
        allowed_gap_(std::max(options.gap, proof_tolerance)),
        program_(problem, options.start ? options.start->makespan_ms : serial_ms(problem)) {
    if (options.start) answer_.placement = *options.start;
    answer_.bound_ms = std::max(program_.model().bound_ms, lower_bound_ms(problem));
  }

  Result<MilpAnswer> operator()() {
    std::optional<MilpAnswer::End> ended;
    if (is_proven()) ended = MilpAnswer::End::proof;
    while (!ended) {
      LANCET_TRY(solve());
      ended = end();
    }
    if (!has_placement()) return no_answer(problem_, solved_, options_.seconds);
    if (is_above_answer()) {
      ended = MilpAnswer::End::tolerances;
      answer_.bound_ms = lower_bound_ms(problem_);
    }
    answer_.bound_ms = std::min(answer_.placement.makespan_ms, answer_.bound_ms);
    const LinearModel& linear = program_.model().linear;
    answer_.columns = static_cast<int>(linear.columns.size());
    answer_.integers = linear.integer_count();
    answer_.rows = static_cast<int>(linear.rows.size());
    answer_.end = *ended;
    answer_.seconds = seconds_since(begin_);
    return std::move(answer_);
  }

 private:
  bool has_placement() const { return answer_.placement.device.size() == problem_.ops.size(); }
  bool is_above_answer() const { return answer_.gap() < -proof_tolerance; }  // the bound, which is wrong then
  bool is_proven() const { return has_placement() && answer_.gap() <= allowed_gap_ && !is_above_answer(); }

  Status solve() {
    const MilpModel& model = program_.model();
    const double left = options_.seconds - seconds_since(begin_);
    LinearOptions linear{.seconds = std::max(0.01, left), .gap = options_.gap, .bound = answer_.bound_ms / model.scale};
    if (has_placement()) linear.start = milp_start(model, problem_, answer_.placement);
    LANCET_ASSIGN(solved_, solve_linear(model.linear, linear));
    answer_.bound_ms = std::max(answer_.bound_ms, solved_.bound * model.scale);
    shorten(answer_.placement, problem_, model, solved_);
    return {};
  }

  // What ends the program; nothing if it is solved again, with the pairs that the last answer did without.
  std::optional<MilpAnswer::End> end() {
    using End = MilpAnswer::End;
    using LinearStatus = LinearAnswer::Status;
    if (is_proven()) return End::proof;
    if (solved_.is_time_over || seconds_since(begin_) >= options_.seconds) return End::time;
    if (solved_.status == LinearStatus::infeasible) return End::tolerances;
    if (solved_.status != LinearStatus::optimal) return End::fault;
    if (program_.add_conflicts(solved_.values) == 0) return End::tolerances;
    if (has_placement()) program_.tighten(answer_.placement.makespan_ms);
    return {};
  }

  const Problem& problem_;
  const MilpOptions& options_;
  const Clock::time_point begin_;
  const double allowed_gap_;
  MilpProgram program_;
  LinearAnswer solved_;  // the last one
  MilpAnswer answer_;
};

}  // namespace

Result<MilpAnswer> solve_milp(const Problem& problem, const MilpOptions& options) {
  const auto begin = Clock::now();
  if (linear_solver().empty()) return solve_linear({}).error();
  LANCET_TRY(check_problem(problem));
  if (options.start) check_valid(problem, *options.start, "the start of the integer program");
  return MilpSolver(problem, options, begin)();
}

}  // namespace lancet::placement
