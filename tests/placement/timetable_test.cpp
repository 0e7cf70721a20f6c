#include "lancet/placement/timetable.h"

#include <catch2/catch.hpp>

#include "support.h"

namespace lancet::placement {
namespace {

using test::problem_of;

}  // namespace

TEST_CASE("a timeline gives the first gap that is long enough") {
  Timeline timeline;
  CHECK(timeline.earliest(3, 5) == 3);
  timeline.take({2, 4});
  timeline.take({7, 9});
  timeline.take({5, 5});
  CHECK(timeline.earliest(0, 2) == 0);
  CHECK(timeline.earliest(0, 2.5) == 9);
  CHECK(timeline.earliest(3, 1) == 4);
  CHECK(timeline.earliest(3, 2) == 5);
  CHECK(timeline.earliest(8, 0) == 9);
  CHECK(timeline.earliest(3, 0) == 4);
  timeline.release({7, 9});
  CHECK(timeline.earliest(0, 2.5) == 5);
  CHECK_THROWS(timeline.release({7, 9}));
}

TEST_CASE("flows share the sender's uplink and the receiver's downlink") {
  // op0 on device 0 and op1 on device 1 both feed op2 on device 2; op0 feeds op3 on device 1, too.
  const Problem problem = problem_of({{1, 9, 9}, {9, 2, 9}, {9, 9, 1}, {9, 3, 9}}, {{0, 2, 4}, {1, 2, 4}, {0, 3, 2}});
  const Placement placement = timetable(problem, {0, 1, 2, 1}, {0, 1, 2, 3});
  test::check_sound(problem, placement);
  CHECK(placement.flows[0].start == 1);  // 1 to 5 on the uplink of 0 and the downlink of 2
  CHECK(placement.flows[1].start == 5);  // the downlink of 2 is busy until then, though op1 ends at 2
  CHECK(placement.ops[2].start == 9);
  CHECK(placement.flows[2].start == 5);  // the uplink of 0 is busy until then
  CHECK(placement.ops[3].start == 7);
  CHECK(placement.makespan_ms == 10);
  // Flows may have an order of their own: that to op3 first, then that of op1.
  const Placement other = timetable(problem, {0, 1, 2, 1}, {0, 4 + 2, 1, 4 + 1, 3, 2});
  test::check_sound(problem, other);
  CHECK(other.ops[3].start == 3);
  CHECK(other.flows[1].start == 2);
  CHECK(other.ops[2].start == 10);
}

TEST_CASE("an op fills a gap that is long enough") {
  // op1 waits 5 for op0's flow; op2, without predecessors, runs before it.
  const Problem problem = problem_of({{2, 9}, {9, 2}, {9, 6}, {9, 8}}, {{0, 1, 5}});
  const Placement placement = timetable(problem, {0, 1, 1, 1}, {0, 1, 2, 3});
  CHECK(placement.ops[1].start == 7);
  CHECK(placement.ops[2].start == 0);
  CHECK(placement.ops[3].start == 9);
}

TEST_CASE("an op that is taken back leaves nothing") {
  const Problem problem = problem_of({{1, 2}, {3, 1}, {1, 1}}, {{0, 1, 4}, {0, 2, 1}});
  Timetable table(problem);
  table.run(0, 0);
  CHECK(table.start_on(1, 1) == 5);
  CHECK(table.start_on(1, 0) == 1);
  CHECK(table.run(2, 1) == 3);
  table.undo();
  CHECK(!table.has_run(2));
  CHECK(table.run(1, 1) == 6);
  CHECK(table.makespan() == 6);
}

TEST_CASE("a timetable's own order gives it back or a shorter one") {
  for (std::uint32_t seed = 1; seed <= 40; ++seed) {
    const Problem problem = test::random_problem(seed, 20, 3, 2, false);
    std::vector<int> device, order;
    for (int op = 0; op < problem.op_count(); ++op) {
      device.push_back(int((seed + std::uint32_t(op) * 7) % 3));
      order.push_back(op);
    }
    Placement late = timetable(problem, device, order);
    const Placement same = timetable(problem, device, order_of(problem, late));
    INFO("seed " << seed);
    for (std::size_t op = 0; op < problem.ops.size(); ++op) CHECK(same.ops[op].start <= late.ops[op].start);
    // Delays take nothing away from the order.
    for (auto* tasks : {&late.ops, &late.flows})
      for (Interval& interval : *tasks)
        interval = {interval.start * 2, interval.start * 2 + interval.end - interval.start};
    const Placement again = timetable(problem, device, order_of(problem, late));
    for (std::size_t op = 0; op < problem.ops.size(); ++op) CHECK(again.ops[op].start <= late.ops[op].start + 1e-9);
  }
}

TEST_CASE("ops of a group are one unit") {
  Problem problem = problem_of({{1, 1}, {1, 1}, {1, 1}, {1, 1}}, {});
  problem.ops[0].group = problem.ops[2].group = 5;
  problem.ops[2].mb = 4;
  const Units units = units_of(problem);
  CHECK(units.of == std::vector<int>{0, 1, 0, 2});
  CHECK(units.ops[0] == std::vector<int>{0, 2});
  CHECK(units.mb == std::vector<double>{5, 1, 1});
}

// Topcuoglu, Hariri and Wu (2002), Figure 2 and Table 3.
TEST_CASE("upward ranks are those of HEFT's paper") {
  const Problem problem = problem_of({{14, 16, 9},
                                      {13, 19, 18},
                                      {11, 13, 19},
                                      {13, 8, 17},
                                      {12, 13, 10},
                                      {13, 16, 9},
                                      {7, 15, 11},
                                      {5, 11, 14},
                                      {18, 12, 20},
                                      {21, 7, 16}},
                                     {{0, 1, 18},
                                      {0, 2, 12},
                                      {0, 3, 9},
                                      {0, 4, 11},
                                      {0, 5, 14},
                                      {1, 7, 19},
                                      {1, 8, 16},
                                      {2, 6, 23},
                                      {3, 7, 27},
                                      {3, 8, 23},
                                      {4, 8, 13},
                                      {5, 7, 15},
                                      {6, 9, 17},
                                      {7, 9, 11},
                                      {8, 9, 13}});
  const std::vector<double> ranks = upward_ranks(problem, flows_of_ops(problem));
  const std::vector<double> published = {108, 77, 80, 80, 69, 63.333, 42.667, 35.667, 44.333, 14.667};
  for (std::size_t op = 0; op < ranks.size(); ++op) CHECK(ranks[op] == Approx(published[op]).margin(1e-3));
  // The ranks of op2 and op3 are equal but for rounding.
  CHECK(order_by(ranks) == std::vector<int>{0, 3, 2, 1, 4, 5, 8, 6, 7, 9});
  // On one device each there is nothing to send.
  const auto placed = upward_ranks(problem, flows_of_ops(problem), std::vector<int>(10, 1));
  CHECK(placed[8] == 19);
  CHECK(placed[0] == 16 + 19 + 12 + 7);
}

}  // namespace lancet::placement
