#include <catch2/catch.hpp>
#include <functional>

#include "lancet/placement/problem.h"
#include "lancet/placement/timetable.h"
#include "placement/support.h"
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

namespace lancet::placement::test {

// Each rule of a placement broken, one by one.

namespace {

// op0 and op1 on device 0 send 2 MB each to op2 and op3 on device 1; op4 is alone on device 2.
Problem broken_problem() {
  Problem problem =
      problem_of({{1, 2, 3}, {1, 2, 3}, {2, 4, 1}, {2, 4, 1}, {1, 1, 5}}, {{0, 2, 2}, {1, 3, 2}, {0, 1, 1}});
  for (Device& device : problem.devices) device.memory_mb = 2;
  problem.ops[0].group = problem.ops[1].group = 7;
  return problem;
}

Placement sound_placement() {
  return {.device = {0, 0, 1, 1, 2},
          .ops = {{0, 1}, {1, 2}, {3, 7}, {7, 11}, {0, 5}},
          .flows = {{1, 3}, {3, 5}, {1, 1}},
          .makespan_ms = 11};
}

using Break = std::function<void(Problem&, Placement&)>;
std::vector<std::string> broken(const Break& apply) {
  Problem problem = broken_problem();
  Placement placement = sound_placement();
  apply(problem, placement);
  return violations(problem, placement);
}
using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("a sound placement breaks no rule") { CHECK(violations(broken_problem(), sound_placement()) == Lines()); }

TEST_CASE("tables and devices out of range are found") {
  CHECK(broken([](Problem&, Placement& p) { p.device.pop_back(); }) ==
        Lines{"devices of ops: expected 5 entries, found 4"});
  CHECK(broken([](Problem&, Placement& p) { p.ops.pop_back(); }) ==
        Lines{"intervals of ops: expected 5 entries, found 4"});
  CHECK(broken([](Problem&, Placement& p) { p.flows.push_back({}); }) ==
        Lines{"intervals of flows: expected 3 entries, found 4"});
  CHECK(broken([](Problem&, Placement& p) { p.device[4] = 3; }) ==
        Lines{"op 4 (op4): expected a device from 0 to 2, found 3"});
  CHECK(broken([](Problem&, Placement& p) { p.device[4] = -1; }) ==
        Lines{"op 4 (op4): expected a device from 0 to 2, found -1"});
}

TEST_CASE("durations, starts and the makespan are checked") {
  CHECK(broken([](Problem&, Placement& p) { p.ops[4].end = 4; }) == Lines{"op 4 (op4) takes 4 ms, expected 5 ms"});
  CHECK(broken([](Problem&, Placement& p) {
          p.ops[4] = {-1, 4};
        }) == Lines{"op 4 (op4) starts at -1 ms, expected 0 or later"});
  CHECK(broken([](Problem&, Placement& p) { p.flows[1].end = 6; }) ==
        Lines{"flow 1 (op1 -> op3) takes 3 ms, expected 2 ms"});
  CHECK(broken([](Problem& q, Placement&) { q.latency_ms[0][1] = 0.5; }).size() == 2);
  CHECK(broken([](Problem&, Placement& p) { p.makespan_ms = 10; }) ==
        Lines{"the makespan is 10 ms, but the last op ends at 11 ms"});
  CHECK(broken([](Problem&, Placement& p) { p.ops[3] = {std::nan(""), std::nan("")}; }).size() >= 1);
}

TEST_CASE("precedence with flows is checked") {
  // A flow before its maker's end, a reader before its flow's end, a reader on the maker's device before its end.
  CHECK(broken([](Problem&, Placement& p) {
          p.flows[0] = {0.5, 2.5};
        }) == Lines{"flow 0 (op0 -> op2) starts at 0.5 ms, before op 0 (op0) ends at 1 ms"});
  CHECK(broken([](Problem&, Placement& p) {
          p.ops[2] = {2.5, 6.5};
        }) == Lines{"op 2 (op2) starts at 2.5 ms, before flow 0 (op0 -> op2) ends at 3 ms"});
  const Lines early = broken([](Problem&, Placement& p) { p.ops[1] = {0.5, 1.5}; });
  REQUIRE(early.size() == 2);
  CHECK(early[0] == "op 1 (op1) starts at 0.5 ms, before op 0 (op0) ends at 1 ms");
}

TEST_CASE("one op at a time on a device and one flow at a time on a link are checked") {
  CHECK(broken([](Problem&, Placement& p) {
          p.ops[3] = {6, 10}, p.makespan_ms = 10;
        }) == Lines{"op 2 (op2) and op 3 (op3) run at the same time on device 1 (device1)"});
  CHECK(
      broken([](Problem&, Placement& p) {
        p.flows[1] = {2.5, 4.5};
      }) ==
      Lines{"flow 0 (op0 -> op2) and flow 1 (op1 -> op3) run at the same time on the uplink of device 0 (device0)",
            "flow 0 (op0 -> op2) and flow 1 (op1 -> op3) run at the same time on the downlink of device 1 (device1)"});
  // Only the uplink: op3 on device 2, after op4; only the downlink: op1 on device 2.
  CHECK(broken([](Problem&, Placement& p) {
          p.device[3] = 2, p.ops[3] = {5, 6}, p.flows[1] = {2.5, 4.5}, p.makespan_ms = 7;
        }) ==
        Lines{"flow 0 (op0 -> op2) and flow 1 (op1 -> op3) run at the same time on the uplink of device 0 (device0)"});
  CHECK(
      broken([](Problem& q, Placement& p) {
        q.ops[1].group = -1, q.flows.pop_back(), p.flows.pop_back();
        p.device[1] = 2, p.ops[1] = {0, 3}, p.ops[4] = {3, 8}, p.flows[0] = {2, 4}, p.ops[2] = {4, 8};
        p.ops[3] = {8, 12}, p.makespan_ms = 12;
      }) ==
      Lines{"flow 0 (op0 -> op2) and flow 1 (op1 -> op3) run at the same time on the downlink of device 1 (device1)"});
  // An op inside a longer one, with one between them in the order of starts.
  CHECK(broken([](Problem& q, Placement& p) {
          q.ops[3].ms[1] = 1, p.ops[3] = {5, 6}, p.makespan_ms = 7;
        }) == Lines{"op 2 (op2) and op 3 (op3) run at the same time on device 1 (device1)"});
}

TEST_CASE("memory and groups are checked") {
  CHECK(broken([](Problem& q, Placement&) { q.ops[2].mb = 1.5; }) ==
        Lines{"device 1 (device1) holds 2.5 MB, expected 2 MB at most"});
  CHECK(broken([](Problem& q, Placement&) { q.ops[2].group = 7; }) ==
        Lines{"group 7: op 0 (op0) is on device 0 (device0), op 2 (op2) on device 1 (device1)"});
}

TEST_CASE("rounding is forgiven, up to a billionth of the makespan") {
  CHECK(broken([](Problem&, Placement& p) { p.ops[4].end += 1e-9; }).empty());
  CHECK(broken([](Problem&, Placement& p) { p.ops[4].end += 1e-7; }).size() == 1);
}

}  // namespace lancet::placement::test
