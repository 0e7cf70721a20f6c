// The page of a run of pipeline stages: each stage's plan, and the times of its own ranks.
#include <fmt/format.h>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "lancet/base/json.h"
#include "log_capture.h"
#include "report/pages.h"
#include "report/run_files.h"

namespace lancet::report {
namespace {

using nlohmann::json;

const char* first_plan = R"(plan {policy=sequential, ranks=2, predicted_ms=4.0}
arena 128
program small
input @x : f32[8]
[0] %0 : f32[8] = gelu(@x)  # compute forward h.0.mlp | at 0 | ms 0.0 1.0
[1] send_next(%0)  # send_next forward h.0.mlp | wait 0 | ms 1.0 3.0
[2] %1 : f32[8] = gelu(%0)  # compute dw h.0.mlp | at 64 | ms 1.0 2.0
)";
const char* second_plan = R"(plan {policy=sequential, ranks=2, predicted_ms=4.0}
arena 128
program small
[0] %0 : f32[8] = receive_previous() {dtype=f32, shape="8"}  # receive_previous forward h.0.mlp | at 0 | ms 1.0 3.0
[1] %1 : f32[8] = gelu(%0)  # compute forward h.1.mlp | wait 0 | at 64 | ms 3.0 4.0
)";

std::string process(int pid, int stage, const std::string& name) {
  return fmt::format(R"({{"ph": "M", "name": "process_name", "pid": {}, "args": {{"name": "{}", "stage": {}}}}},)", pid,
                     name, stage);
}

std::string event(int pid, int stream, const std::string& name, int index, int begin_us, int us) {
  return fmt::format(
      R"({{"ph": "X", "name": "{}", "cat": "x", "pid": {}, "tid": {}, "ts": {}, "dur": {}, "args": {{"index": {}}}}},)",
      name, pid, stream, begin_us, us, index);
}

// The send takes 3 ms, of which 0.5 ms are beside a computation; the receive waits for 5 ms.
// more: further events of rank 0.
std::string trace(int more = 0) {
  std::string events = process(2, 0, "predicted, stage 0") + event(2, 0, "gelu h.0.mlp", 0, 0, 1000) +
                       process(0, 0, "measured, stage 0, rank 0") + event(0, 0, "gelu h.0.mlp", 0, 0, 2000) +
                       event(0, 3, "send_next h.0.mlp", 1, 2000, 3000) + event(0, 0, "gelu h.0.mlp", 2, 2000, 500) +
                       process(3, 1, "predicted, stage 1") + event(3, 4, "receive_previous h.0.mlp", 0, 1000, 2000) +
                       process(1, 1, "measured, stage 1, rank 1") +
                       event(1, 4, "receive_previous h.0.mlp", 0, 0, 5000) + event(1, 0, "gelu h.1.mlp", 1, 5000, 1000);
  for (int i = 0; i < more; ++i) events += event(0, 0, "gelu h.0.mlp", 2, 2500, 0);
  return R"({"traceEvents": [)" + events.substr(0, events.size() - 1) + "]}";
}

json run_of(const test::TemporaryFolder& folder) { return test::data_of(test::page_of(folder).value())["runs"][0]; }

json hidden(double ms, double hidden_ms, const std::string& by) {
  return json::object({{"ms", ms}, {"hidden_ms", hidden_ms}, {"by", by}});
}

}  // namespace

TEST_CASE("a page of stages: what hides each communication, stage by stage") {
  const test::TemporaryFolder folder;
  folder.write("metrics.jsonl", test::record(1, 2.0));
  folder.write("config.json", R"({"mesh": {"stage": 2}})");
  folder.write("plan.ir", first_plan);
  folder.write("plan.stage1.ir", second_plan);
  const json predicted = run_of(folder)["communications"];
  REQUIRE(predicted.size() == 2);
  CHECK(predicted[0]["stage"] == 0);
  CHECK(predicted[0]["site"] == "h.0.mlp.send_next");
  CHECK(predicted[0]["pass"] == "forward");
  CHECK(predicted[0]["predicted"] == hidden(2, 1, "h.0.mlp dw 1.00"));
  CHECK(predicted[1]["stage"] == 1);
  CHECK(predicted[1]["site"] == "h.0.mlp.receive_previous");
  CHECK(predicted[1]["predicted"] == hidden(2, 0, "-"));
  for (const json& row : predicted) CHECK(row["measured"].is_null());

  folder.write("trace.json", trace());
  const json run = run_of(folder);
  CHECK(run["communications"][0]["predicted"] == hidden(2, 1, "h.0.mlp dw 1.00"));
  CHECK(run["communications"][0]["measured"] == hidden(3, 0.5, "h.0.mlp dw 0.50"));
  CHECK(run["communications"][1]["measured"] == hidden(5, 0, "-"));
  CHECK(run["left_out"].empty());
  std::vector<std::string> rows;
  for (const json& row : run["timeline"]["rows"]) rows.push_back(row["process"]);
  CHECK(std::ranges::count(rows, "measured, stage 1, rank 1") == 2);
}

TEST_CASE("a page of stages whose trace is too long to draw has the measured times of all stages") {
  const test::TemporaryFolder folder;
  folder.write("metrics.jsonl", test::record(1, 2.0));
  folder.write("config.json", R"({"mesh": {"stage": 2}})");
  folder.write("plan.ir", first_plan);
  folder.write("plan.stage1.ir", second_plan);
  folder.write("trace.json", trace(60'000));
  const json run = run_of(folder);
  CHECK(run["communications"][1]["measured"] == hidden(5, 0, "-"));
  CHECK(run["left_out"].empty());
  CHECK(run["timeline"]["left_out"] == 3);
  for (const json& row : run["timeline"]["rows"]) CHECK(row["process"] == "measured, stage 0, rank 0");
}

TEST_CASE("a page of stages names a stage's plan that is missing, and shows the others") {
  const test::TemporaryFolder folder;
  folder.write("metrics.jsonl", test::record(1, 2.0));
  folder.write("config.json", R"({"mesh": {"stage": 2}})");
  folder.write("plan.ir", first_plan);
  const test::LogCapture log;
  const json run = run_of(folder);
  REQUIRE(run["communications"].size() == 1);
  CHECK(run["communications"][0]["site"] == "h.0.mlp.send_next");
  CHECK(json_text(run["left_out"]).find("plan.stage1.ir: ") != std::string::npos);
}

// What the page shows of the MoE layers: heat maps of the experts' load, and each layer's last numbers.

using test::data_of;
using test::page_of;
using test::record;
using test::TemporaryFolder;

TEST_CASE("the page has the load of each expert, and the layers' numbers of the last record") {
  const TemporaryFolder folder;
  const std::string numbers = R"(, "z_loss": 5, "experts_per_token": 1.5, "layer_drop_pct": [0.5, 12.5])"
                              R"(, "layer_dead_experts": [0, 1], "layer_experts_per_token": [1, 2])"
                              R"(, "layer_z_loss": [4, null], "layer_bias_spread": [])";
  folder.write("metrics.jsonl", record(1, 4, R"(, "layer_expert_tokens": [[3, 1], [0, 8]], "layer_drop_pct": [9, 9])") +
                                    record(2, 3, R"(, "layer_expert_tokens": [[2, 2], [2, 6]])" + numbers));
  const json run = data_of(page_of(folder).value())["runs"][0];
  CHECK(run["load"]["from"] == json({1, 2}));
  const json &first = run["load"]["layers"][0], &second = run["load"]["layers"][1];
  CHECK(first["percent"] == json({150, 50, 100, 100}));  // of an even share
  CHECK(second["percent"] == json({0, 200, 50, 150}));
  CHECK(first["last"] == json({{"drop_pct", 0.5}, {"dead_experts", 0}, {"experts_per_token", 1}, {"z_loss", 4}}));
  CHECK(second["last"]["drop_pct"] == 12.5);
  CHECK(second["last"]["z_loss"].is_null());
  CHECK(run["series"]["z_loss"]["mean"] == json({nullptr, 5}));
  CHECK(run["means"]["experts_per_token"]["last"] == 1.5);
}

TEST_CASE("heat maps of many steps and experts have a bounded size") {
  const TemporaryFolder few, many;
  std::string tokens;
  for (int e = 0; e < 64; ++e) tokens += fmt::format("{}{}", e > 0 ? ", " : "", 1000 + 37 * e);
  const auto of_layers = [&](int steps) {
    std::string text;
    for (int step = 1; step <= steps; ++step)
      text += record(step, 1, fmt::format(R"(, "layer_expert_tokens": [[{0}], [{0}]])", tokens));
    return text;
  };
  few.write("metrics.jsonl", of_layers(int(most_columns)));
  many.write("metrics.jsonl", of_layers(4000));
  const std::string small = page_of(few).value(), large = page_of(many).value();
  CHECK(large.size() < small.size() + 100'000);
  CHECK(large.size() < 1'000'000);
  for (const json& layer : data_of(large)["runs"][0]["load"]["layers"]) {
    CHECK(layer["percent"].size() <= 64 * most_columns);
    CHECK(layer["percent"].size() >= 64 * most_columns / 2);
    CHECK(layer["percent"][0] == 46);  // 1000 of a mean of 2165.5
  }
}

}  // namespace lancet::report
