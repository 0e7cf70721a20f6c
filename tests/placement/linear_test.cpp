// Linear programs as data, and solved.
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "lancet/base/clock.h"
#include "lancet/placement/linear_solver.h"

namespace lancet::placement::test {
namespace {

// Minimise -x - 2 y with x + y <= 4 and x + 3 y between 1 and 6: -5 at (3, 1); with whole numbers and x <= 2.5: -4.
LinearModel small_model(bool integer) {
  LinearModel model;
  const int x = model.add_column({0, integer ? 2.5 : unbounded, -1, integer});
  const int y = model.add_column({0, unbounded, -2, integer});
  model.add_row(-unbounded, 4, {{x, 1}, {y, 1}});
  model.add_row(1, 6, {{x, 1}, {y, 2}, {y, 1}, {x, 1}, {x, -1}});
  return model;
}

}  // namespace

TEST_CASE("a row adds up the terms of a column, and has none of factor 0") {
  LinearModel model = small_model(true);
  REQUIRE(model.rows.size() == 2);
  REQUIRE(model.rows[1].terms.size() == 2);
  CHECK(model.rows[1].terms[1].factor == 3);
  model.add_row(0, 0, {{0, 1}, {0, -1}});
  CHECK(model.rows.size() == 2);
}

TEST_CASE("linear and integer programs have the values of their optimum") {
  if (linear_solver().empty()) {
    const auto none = solve_linear(small_model(false));
    CHECK(none.error().code == ExitCode::config);
    WARN("SKIPPED: " << none.error().message);
    return;
  }
  const auto linear = solve_linear(small_model(false));
  REQUIRE(linear->status == LinearAnswer::Status::optimal);
  CHECK(linear->objective == Approx(-5));
  CHECK(linear->bound == Approx(-5));
  CHECK(linear->values[0] == Approx(3));
  CHECK(linear->values[1] == Approx(1));
  const auto integer = solve_linear(small_model(true), {.start = {0, 1}});
  REQUIRE(integer->status == LinearAnswer::Status::optimal);
  CHECK(integer->objective == Approx(-4));
  CHECK(integer->bound == Approx(-4));
}

// Six sums of 50 numbers of up to 100 are to be half of their totals, and what they miss is minimised: easy to answer,
// hard to prove (Cornuejols and Dawande, 1998).
TEST_CASE("an integer program whose time is over keeps its answers and its bound") {
  if (linear_solver().empty()) return;
  std::mt19937 random(5);
  LinearModel model;
  for (int i = 0; i < 50; ++i) model.add_column({0, 1, 0, true});
  for (int row = 0; row < 6; ++row) {
    std::vector<Term> terms;
    double half = 0;
    for (int i = 0; i < 50; ++i) terms.push_back({i, double(random() % 100)}), half += terms.back().factor / 2;
    for (const double sign : {1.0, -1.0}) terms.push_back({model.add_column({0, unbounded, 1, false}), sign});
    model.add_row(std::floor(half), std::floor(half), terms);
  }
  const auto before = std::chrono::steady_clock::now();
  const auto answer = solve_linear(model, {.seconds = 1});
  CHECK(seconds_since(before) < 2);
  REQUIRE(answer->status == LinearAnswer::Status::feasible);
  CHECK(answer->is_time_over);
  CHECK(answer->bound >= 0);
  CHECK(answer->bound <= answer->objective);
  CHECK(!answer->earlier.empty());
  double misses = 0;
  for (std::size_t i = 50; i < model.columns.size(); ++i) misses += answer->values[i];
  CHECK(misses == Approx(answer->objective));
}

TEST_CASE("linear and integer programs without an optimum say so") {
  if (linear_solver().empty()) return;
  for (const bool integer : {false, true}) {
    CAPTURE(integer);
    LinearModel model = small_model(integer);
    model.add_row(10, unbounded, {{0, 1}});
    CHECK(solve_linear(model)->status == LinearAnswer::Status::infeasible);
    CHECK(solve_linear(model)->values.empty());
  }
  LinearModel model;  // has no least value
  model.add_column({0, unbounded, -2, false});
  model.add_column({0, unbounded, 1, false});
  model.add_row(-unbounded, 1, {{0, 1}, {1, -1}});
  CHECK(solve_linear(model)->status == LinearAnswer::Status::infeasible);
}

}  // namespace lancet::placement::test
