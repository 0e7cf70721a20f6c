// The trace of a plan and spans that are made by hand.
#include "lancet/runtime/trace.h"
#include "text.h"

#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>

using namespace lancet;
using runtime::Span;

namespace {

ir::Plan plan_of(bool predicted) {
  const std::string header = predicted ? "plan {policy=dw, predicted_ms=1.5}\n" : "plan {policy=sequential}\n";
  auto plan = ir::parse_plan(header + R"(arena 128
program p
input @x : f32[4]
[0] %0 : f32[4] = gelu(@x)  # compute forward h.0.mlp | at 0 | ms 0.0 0.5
[1] %1 : f32[4] = all_to_all(%0)  # expert forward h.0.moe | wait 0 | at 64 | ms 0.5001 1.25
[2] %2 : f32[4] = gelu(%0)  # compute dw h.0 | at 64 | ms 0.5 1.5
)");
  if (!plan.ok()) FAIL(plan.error().message);
  plan->program.instructions[2].label = "h.0.\"odd\"";
  return *plan;
}

const std::vector<std::vector<Span>> spans = {{{1000, 2001}, {2001, 9999}, {2001, 12345}},
                                              {{0, 1'000'000}, {1'000'000, 1'000'007}, {1'000'000, 1'000'000}}};

}  // namespace

TEST_CASE("a trace has each instruction once per rank and once predicted, to the nanosecond") {
  const auto trace = test::json_in(runtime::trace_json(plan_of(true), spans));
  std::map<int, std::string> processes;
  std::map<std::pair<int, int>, std::string> streams;
  std::map<std::pair<int, int>, nlohmann::json> events;  // by process and instruction
  for (const auto& event : trace["traceEvents"]) {
    const int pid = event["pid"];
    if (event["name"] == "process_name") processes[pid] = event["args"]["name"];
    if (event["name"] == "thread_name") streams[{pid, event["tid"]}] = event["args"]["name"];
    if (event["ph"] != "X") continue;
    const bool first = events.emplace(std::pair(pid, event["args"]["index"].get<int>()), event).second;
    CHECK(first);
  }
  CHECK(processes == std::map<int, std::string>{{0, "measured, rank 0"}, {1, "measured, rank 1"}, {2, "predicted"}});
  CHECK(streams.size() == 3 * 2);  // no row for the stream that the plan does not use
  CHECK(streams[{1, 0}] == "compute");
  CHECK(streams[{2, 1}] == "expert");
  REQUIRE(events.size() == 3 * 3);
  const auto& all_to_all = events[{0, 1}];
  CHECK(all_to_all["name"] == "all_to_all h.0.moe");
  CHECK(all_to_all["tid"] == 1);
  CHECK(all_to_all["cat"] == "forward");
  CHECK(all_to_all["args"]["waits"] == nlohmann::json::array({0}));
  CHECK(all_to_all["ts"].get<double>() == Approx(2.001));
  CHECK(all_to_all["dur"].get<double>() == Approx(7.998));
  CHECK(events[{1, 1}]["dur"].get<double>() == Approx(0.007));
  CHECK(events[{2, 1}]["ts"].get<double>() == Approx(500.1));
  CHECK(events[{2, 1}]["dur"].get<double>() == Approx(749.9));
  CHECK(events[{0, 2}]["name"] == "gelu h.0.\"odd\"");
}

TEST_CASE("events of a trace row do not overlap") {
  const auto trace = test::json_in(runtime::trace_json(plan_of(true), spans));
  std::map<std::pair<int, int>, double> end;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    double& last = end[{event["pid"], event["tid"]}];
    const double start = event["ts"];
    CHECK(start >= last - 1e-9);
    last = start + event["dur"].get<double>();
  }
  CHECK(end.size() == 6);
}

TEST_CASE("without predictions a trace shows the measured spans") {
  const auto trace = test::json_in(runtime::trace_json(plan_of(false), spans));
  int events = 0;
  for (const auto& event : trace["traceEvents"]) {
    CHECK(event["pid"] != 2);
    events += event["ph"] == "X";
  }
  CHECK(events == 6);
}
