#include "lancet/placement/milp.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "lancet/base/check.h"
#include "lancet/placement/linear_solver.h"
#include "lancet/placement/solvers.h"
#include "lancet/placement/violations.h"
#include "milp_model.h"

namespace lancet::placement {
namespace {

constexpr double proof_tolerance = 1e-5;  // relative: what the solver's own tolerances allow

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void check_valid(const Problem& problem, const Placement& placement, const char* what) {
  const auto broken = violations(problem, placement);
  LANCET_CHECK(broken.empty(), "{} breaks {} rules, the first: {}", what, broken.size(), broken.front());
}

bool has_values(const LinearAnswer& answer) {
  return answer.status == LinearAnswer::Status::optimal || answer.status == LinearAnswer::Status::feasible;
}

Result<LinearAnswer> solve_model(const MilpModel& model, const Problem& problem, const MilpOptions& options,
                                 double seconds) {
  LinearOptions linear{.seconds = std::max(0.01, seconds), .gap = options.gap};
  if (options.start) linear.start = milp_start(model, problem, *options.start);
  return solve_linear(model.linear, linear);
}

Error no_answer(const Problem& problem, const LinearAnswer& answer, double seconds) {
  if (answer.status == LinearAnswer::Status::infeasible)
    return config_error(
        fmt::format("no placement of {} ops on {} devices has enough memory and paths: expected one, "
                    "found a proof that there is none",
                    problem.op_count(), problem.device_count()));
  const char* found = has_values(answer)      ? "found one only within CBC's tolerances"
                      : !answer.is_time_over ? "found a failure of CBC"
                                              : "found none";
  return config_error(fmt::format("the integer program: expected a placement within {} s, {}", seconds, found));
}

// The shortest placement of all that CBC found and of the start, none of which is taken on trust: CBC keeps to its rows
// only within tolerances. No device for any op: there is none.
Placement shortest(const Problem& problem, const MilpModel& model, const LinearAnswer& solved, const Placement* start) {
  Placement best;
  if (start) best = *start;
  const auto consider = [&](const std::vector<double>& values) {
    Placement found = milp_placement(model, problem, values);
    if (violations(problem, found).empty() && (best.device.empty() || found.makespan_ms < best.makespan_ms))
      best = std::move(found);
  };
  if (has_values(solved)) consider(solved.values);
  for (const std::vector<double>& values : solved.earlier) consider(values);
  return best;
}

MilpAnswer::End end_of(const LinearAnswer& solved, bool is_proven) {
  using Status = LinearAnswer::Status;
  if (is_proven) return MilpAnswer::End::proof;
  if (solved.status == Status::infeasible || solved.status == Status::optimal) return MilpAnswer::End::tolerances;
  return solved.is_time_over ? MilpAnswer::End::time : MilpAnswer::End::fault;
}

}  // namespace

Result<MilpAnswer> solve_milp(const Problem& problem, const MilpOptions& options) {
  const auto before = Clock::now();
  if (linear_solver().empty()) return solve_linear({}).error();
  LANCET_TRY(check_problem(problem));
  if (options.start) check_valid(problem, *options.start, "the start of the integer program");

  const MilpModel model = milp_model(problem, options.start ? options.start->makespan_ms : serial_ms(problem));
  const double known_bound_ms = std::max(model.bound_ms, lower_bound_ms(problem));
  const double allowed_gap = std::max(options.gap, proof_tolerance);
  LinearAnswer solved;
  if (!options.start || options.start->makespan_ms * (1 - allowed_gap) > known_bound_ms) {
    LANCET_ASSIGN(solved, solve_model(model, problem, options, options.seconds - seconds_since(before)));
  }
  MilpAnswer answer;
  answer.placement = shortest(problem, model, solved, options.start);
  if (answer.placement.device.size() != problem.ops.size()) return no_answer(problem, solved, options.seconds);
  answer.bound_ms = std::min(answer.placement.makespan_ms, std::max(known_bound_ms, solved.bound * model.scale));
  answer.end = end_of(solved, answer.gap() <= allowed_gap);
  answer.columns = static_cast<int>(model.linear.columns.size());
  answer.integers = model.linear.integer_count();
  answer.rows = static_cast<int>(model.linear.rows.size());
  answer.seconds = seconds_since(before);
  return answer;
}

}  // namespace lancet::placement
