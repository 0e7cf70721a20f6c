// Each rule of a placement broken, one by one.
#include "lancet/placement/problem.h"

#include <functional>

#include "placement/support.h"

namespace lancet::placement::test {
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
