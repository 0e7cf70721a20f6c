// The trace of a plan and spans that are made by hand.
#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "lancet/runtime/executor.h"
#include "runtime/device_times.h"
#include "support.h"
#include "text.h"

namespace lancet {

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

std::string trace_of(const ir::Plan& plan) { return runtime::trace_json(std::span(&plan, 1), spans); }

}  // namespace

TEST_CASE("a trace has each instruction once per rank and once predicted, to the nanosecond") {
  const auto trace = test::json_in(trace_of(plan_of(true)));
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
  const auto trace = test::json_in(trace_of(plan_of(true)));
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
  const auto trace = test::json_in(trace_of(plan_of(false)));
  int events = 0;
  for (const auto& event : trace["traceEvents"]) {
    CHECK(event["pid"] != 2);
    events += event["ph"] == "X";
  }
  CHECK(events == 6);
}

TEST_CASE("a trace of stages has each rank below the prediction of its own stage") {
  std::vector<ir::Plan> stages{plan_of(true), plan_of(true)};
  auto second = ir::parse_plan(R"(plan {policy=sequential, predicted_ms=2.0}
arena 64
program p
[0] %0 : f32[4] = receive_previous() {dtype=f32, shape="4"}  # receive_previous forward h.0 | at 0 | ms 0.5 2.0
)");
  REQUIRE(second.ok());
  stages[1] = *std::move(second);
  std::vector<std::vector<Span>> measured = spans;
  measured.push_back({{0, 3000}});
  measured.push_back({{10, 5000}});
  const auto trace = test::json_in(runtime::trace_json(stages, measured));
  std::map<int, std::string> shown;  // by place
  std::map<int, int> stage_of, place;
  std::map<int, std::vector<std::string>> events;
  for (const auto& event : trace["traceEvents"]) {
    const int pid = event["pid"];
    if (event["name"] == "process_sort_index") place[pid] = event["args"]["sort_index"];
    if (event["name"] == "process_name") stage_of[pid] = event["args"]["stage"];
    if (event["ph"] == "X") events[pid].push_back(event["name"]);
  }
  for (const auto& event : trace["traceEvents"])
    if (event["name"] == "process_name") shown[place[event["pid"]]] = event["args"]["name"];
  CHECK(shown == std::map<int, std::string>{{0, "predicted, stage 0"},
                                            {1, "measured, stage 0, rank 0"},
                                            {2, "measured, stage 0, rank 1"},
                                            {3, "predicted, stage 1"},
                                            {4, "measured, stage 1, rank 2"},
                                            {5, "measured, stage 1, rank 3"}});
  CHECK(stage_of == std::map<int, int>{{0, 0}, {1, 0}, {2, 1}, {3, 1}, {4, 0}, {5, 1}});
  CHECK(events[1].size() == 3);
  CHECK(events[4].size() == 3);
  for (const int pid : {2, 3, 5}) CHECK(events[pid] == std::vector<std::string>{"receive_previous h.0"});
}

// Busy, exposed and hidden time of spans made by hand.

namespace {

constexpr std::int64_t ns_of_ms = 1'000'000;

ir::Program streams_of(const std::string& letters) {  // c, e, r
  ir::Program p;
  for (char letter : letters) {
    const ir::Stream stream = letter == 'c'   ? ir::Stream::compute
                              : letter == 'e' ? ir::Stream::expert
                                              : ir::Stream::reduce;
    p.instructions.push_back({"f", {}, {}, {}, {}, stream, ir::Role::forward, ""});
  }
  return p;
}

void check_times(const std::string& letters, std::vector<Span> spans, std::int64_t step,
                 const runtime::StepTimes& expected) {
  for (Span& span : spans) span = {span.start * ns_of_ms, span.end * ns_of_ms};
  const runtime::StepTimes times = runtime::stream_times(streams_of(letters), spans, step * ns_of_ms);
  INFO(letters);
  CHECK(times.step == Approx(expected.step));
  CHECK(times.compute == Approx(expected.compute));
  CHECK(times.all_to_all == Approx(expected.all_to_all));
  CHECK(times.all_reduce == Approx(expected.all_reduce));
  CHECK(times.communication == Approx(expected.communication));
  CHECK(times.exposed == Approx(expected.exposed));
}

}  // namespace

TEST_CASE("exposed time is communication while compute is idle") {
  // step, compute, all_to_all, all_reduce, communication, exposed
  check_times("", {}, 3, {3, 0, 0, 0, 0, 0});
  check_times("c", {{1, 4}}, 5, {5, 3, 0, 0, 0, 0});
  check_times("e", {{1, 4}}, 5, {5, 0, 3, 0, 3, 3});
  check_times("cec", {{0, 2}, {2, 5}, {5, 6}}, 6, {6, 3, 3, 0, 3, 3});  // in turns: all exposed
  check_times("ce", {{0, 10}, {2, 5}}, 10, {10, 10, 3, 0, 3, 0});       // all hidden
  check_times("ce", {{0, 4}, {2, 7}}, 7, {7, 4, 5, 0, 5, 3});           // its end is exposed
  check_times("ec", {{0, 5}, {3, 9}}, 9, {9, 6, 5, 0, 5, 3});           // its beginning is exposed
  check_times("ec", {{0, 9}, {3, 5}}, 9, {9, 2, 9, 0, 9, 7});           // both are exposed
  check_times("er", {{0, 4}, {2, 6}}, 6, {6, 0, 4, 4, 6, 6});           // two streams at once count once
  check_times("cer", {{3, 5}, {0, 4}, {2, 6}}, 6, {6, 2, 4, 4, 6, 4});
  check_times("ccee", {{0, 2}, {6, 8}, {1, 3}, {5, 9}}, 9, {9, 4, 6, 0, 6, 3});  // gaps
  check_times("cc", {{2, 2}, {2, 4}}, 4, {4, 2, 0, 0, 0, 0});                    // a span without length
  check_times("eccc", {{1, 6}, {0, 1}, {1, 2}, {2, 3}}, 6, {6, 3, 5, 0, 5, 3});  // adjacent
}

}  // namespace lancet
