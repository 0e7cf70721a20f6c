// The page holds all of a run folder as data, and names broken files.
#include "lancet/report/report.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "good.h"
#include "lancet/base/json.h"
#include "log_capture.h"
#include "report/pages.h"
#include "report/run_files.h"
#include "temporary_folder.h"

namespace lancet::report {
namespace {

using nlohmann::json;
using test::data_of;
using test::page_of;
using test::record;
using test::TemporaryFolder;

std::string records(int count) {
  std::string text;
  for (int step = 1; step <= count; ++step) text += record(step, 1.0 / step);
  return text;
}

std::string file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

template <class T>
void check_refused(const Result<T>& status, const std::string& what) {
  REQUIRE_FALSE(status.ok());
  INFO(status.error().message);
  CHECK(status.error().code == ExitCode::data);
  CHECK(status.error().message.find(what) != std::string::npos);
  CHECK(status.error().message.find('\n') == std::string::npos);
}

const char* plan = R"(plan {policy=dw, ranks=2, predicted_ms=2.5}
arena 192
program small
input @x : f32[8]
parameter @w : f32[100]
state @w.m : f32[100]
[0] %0 : f32[16] = first(@x)  # compute forward a | at 0
[1] %1 : f32[32] = second(%0)  # compute forward b | at 64
[2] %2 : f32[4] = third(%1)  # compute dx c | at 0
output loss = %2
)";

}  // namespace

TEST_CASE("records become columns; null and missing values are gaps") {
  const TemporaryFolder folder;
  const auto path = folder.write("metrics.jsonl", record(1, 4, R"(, "mfu": null, "drop_pct": 0.5)") +
                                                      record(2, 3, R"(, "mfu": 40, "new_field": "x")"));
  const auto metrics = test::good(read_metrics(path));
  CHECK(metrics->steps == std::vector<std::int64_t>{1, 2});
  const auto series = [&](std::string_view key) { return metrics->series[series_index(key)]; };
  CHECK(series("loss") == std::vector<double>{4, 3});
  CHECK(std::isnan(series("mfu")[0]));
  CHECK(series("mfu")[1] == 40);
  CHECK(series("drop_pct")[0] == 0.5);
  CHECK(std::isnan(series("drop_pct")[1]));
  CHECK_FALSE(metrics->cut_short);
}

TEST_CASE("a truncated last line is left out, a complete one without a line end is not") {
  const TemporaryFolder folder;
  const std::string whole = records(3);
  for (const std::size_t cut : {std::size_t{1}, std::size_t{5}, whole.size() / 3 - 2}) {
    const auto metrics =
        test::good(read_metrics(folder.write("metrics.jsonl", whole.substr(0, whole.size() - 1 - cut))));
    CHECK(metrics->steps == std::vector<std::int64_t>{1, 2});
    CHECK(metrics->cut_short);
  }
  const auto metrics = test::good(read_metrics(folder.write("metrics.jsonl", whole.substr(0, whole.size() - 1))));
  CHECK(metrics->steps.size() == 3);
  CHECK_FALSE(metrics->cut_short);
}

TEST_CASE("a broken line is left out and named, and the page shows the rest") {
  const TemporaryFolder folder;
  struct Case {
    std::string line, said;
  };
  const auto given = GENERATE(values<Case>(
      {{"{\"step\": 2, \"loss\"", "line 2: expected a JSON object"},
       {"", "line 2: expected a JSON object"},
       {"[1, 2]", "line 2: expected a JSON object"},
       {std::string(200'000, '['), "line 2: expected a JSON object"},
       {"{\"loss\": 3}", "line 2: expected \"step\""},
       {"{\"step\": 0}", "line 2: expected \"step\""},
       {"{\"step\": 1.5}", "line 2: expected \"step\""},
       {"{\"step\": 18446744073709551615}", "line 2: expected \"step\""},
       {"{\"step\": 2, \"loss\": \"low\"}", "line 2: expected \"loss\" to be a number or null"},
       {"{\"step\": 2, \"layer_expert_tokens\": [[1], 2]}", "line 2: expected \"layer_expert_tokens\""},
       {"{\"step\": 2, \"layer_expert_tokens\": [[1, -2]]}", "line 2: expected \"layer_expert_tokens\""},
       {"{\"step\": 2, \"layer_expert_tokens\": [[1, 2, 3]]}", "line 2: expected \"layer_expert_tokens\""},
       {"{\"step\": 2, \"layer_drop_pct\": 1}", "line 2: expected \"layer_drop_pct\" to hold a number or null"},
       {"{\"step\": 2, \"layer_z_loss\": [1, \"2\"]}", "line 2: expected \"layer_z_loss\" to hold a number"}}));
  const auto path = folder.write("metrics.jsonl", record(1, 4, R"(, "layer_expert_tokens": [[1, 2]])") + given.line +
                                                      "\n" + given.line + "\n" + record(3, 2));
  const auto metrics = test::good(read_metrics(path));
  CHECK(metrics->steps == std::vector<std::int64_t>{1, 3});
  CHECK(metrics->series[0] == std::vector<double>{4, 2});
  CHECK(metrics->broken.count == 2);
  CHECK(metrics->broken.first.starts_with(given.said));
  CHECK_FALSE(metrics->cut_short);
  const json run = data_of(page_of(folder).value())["runs"][0];
  CHECK(run["broken"]["count"] == 2);
  CHECK(run["broken"]["first"] == metrics->broken.first);
  check_refused(read_metrics(folder.write("metrics.jsonl", "no record\n")), "found none; line 1: expected");
}

TEST_CASE("a line without end does not fill the memory") {
  const TemporaryFolder folder;
  const auto path = folder.write("metrics.jsonl", records(2));
  std::filesystem::resize_file(path, std::uintmax_t(1) << 40);  // zeros in a sparse file
  const auto metrics = test::good(read_metrics(path));
  CHECK(metrics->steps == std::vector<std::int64_t>{1, 2});
  CHECK(metrics->broken.count == 1);
  CHECK(metrics->broken.first.starts_with("line 3: expected a record of at most 64 MB, found more"));
  std::filesystem::resize_file(folder.write("plan.ir", plan), std::uintmax_t(1) << 40);
  check_refused(read_plan_summary(folder / "plan.ir"), "expected a plan of at most 1000 MB, found 1099511 MB");
}

TEST_CASE("a number that is not finite is a gap in its line, however many records make a point") {
  const TemporaryFolder folder;
  const int steps = GENERATE(10, 10'000);
  std::string text;
  for (int step = 1; step <= steps; ++step)
    text += step == 7 ? "{\"step\": 7, \"loss\": null, \"grad_norm\": null, \"save_ms\": 1}\n"
                      : record(step, 1.0 / step, R"(, "grad_norm": 1)");
  folder.write("metrics.jsonl", text);
  const json run = data_of(page_of(folder).value())["runs"][0];
  CHECK(run["not_finite"]["count"] == 1);
  CHECK(run["not_finite"]["first"] == 7);
  const std::size_t width = run["series"]["width"], gap = 6 / width;
  for (const char* key : {"loss", "grad_norm"}) {
    const json& mean = run["series"][key]["mean"];
    for (std::size_t i = 0; i < mean.size(); ++i) CHECK(mean[i].is_null() == (i == gap));
  }
  CHECK(run["series"]["save_ms"]["mean"][gap] == 1);  // steps without a save are no gaps
}

TEST_CASE("a norm that a run did not live to know is not one that was not finite") {
  const TemporaryFolder folder;
  folder.write("metrics.jsonl", record(1, 0.5, R"(, "grad_norm": 1)") + record(2, 0.25));
  const json run = data_of(page_of(folder).value())["runs"][0];
  CHECK(run["not_finite"]["count"] == 0);
  CHECK(run["series"]["grad_norm"]["mean"] == json({1, nullptr}));
}

TEST_CASE("emulated devices compute no loss, so theirs is not one that was not finite") {
  const TemporaryFolder folder;
  folder.write("metrics.jsonl", "{\"step\": 1, \"loss\": null, \"grad_norm\": null, \"step_ms\": 2}\n");
  const auto count = [&] { return data_of(page_of(folder).value())["runs"][0]["not_finite"]["count"]; };
  folder.write("config.json", R"({"device": "cpu"})");
  CHECK(count() == 1);
  folder.write("config.json", R"({"device": "emulated"})");
  CHECK(count() == 0);
}

TEST_CASE("a held-out loss on its own line belongs to the step before it") {
  const TemporaryFolder folder;
  const auto held_out_after = [](int step) {
    return R"({"step": )" + std::to_string(step) + R"(, "held_out_loss": 0.75})" + "\n";
  };
  // Steps 1 and 4 have no record except their held-out loss, which does not count as a loss that is not finite.
  const auto metrics = test::good(read_metrics(folder.write(
      "metrics.jsonl", held_out_after(1) + records(2) + held_out_after(2) + record(3, 0.25) + held_out_after(4))));
  CHECK(metrics->steps == std::vector<std::int64_t>{1, 2, 3});
  const std::vector<double>& held_out = metrics->series[series_index("held_out_loss")];
  CHECK(std::isnan(held_out[0]));
  CHECK(held_out[1] == 0.75);
  CHECK(std::isnan(held_out[2]));
  CHECK(metrics->series[0] == std::vector<double>{1, 0.5, 0.25});
}

TEST_CASE("steps that a resumed run repeats replace the earlier ones") {
  const TemporaryFolder folder;
  const std::string tokens = R"(, "layer_expert_tokens": [[1, 3]])", other = R"(, "layer_expert_tokens": [[4, 0]])";
  std::string text;
  for (int step : {1, 2, 3, 4}) text += record(step, step, tokens);
  for (int step : {3, 4, 5}) text += record(step, 10 * step, other);
  const auto metrics = test::good(read_metrics(folder.write("metrics.jsonl", text)));
  CHECK(metrics->steps == std::vector<std::int64_t>{1, 2, 3, 4, 5});
  CHECK(metrics->series[0] == std::vector<double>{1, 2, 30, 40, 50});
  REQUIRE(metrics->load.size() == 5);
  CHECK(metrics->load[1].load == std::vector<float>{1, 3});
  CHECK(metrics->load[2].load == std::vector<float>{4, 0});
}

TEST_CASE("the expert load of many steps is summed in few columns without losing a token") {
  const TemporaryFolder folder;
  const int steps = GENERATE(1, 239, 240, 241, 5000);
  std::string text;
  for (int step = 1; step <= steps; ++step)
    text += record(step, 1, fmt::format(R"(, "layer_expert_tokens": [[{}, 1], [2, 0]])", step));
  const auto metrics = test::good(read_metrics(folder.write("metrics.jsonl", text)));
  CHECK(metrics->experts == std::vector<std::size_t>{2, 2});
  CHECK(metrics->load.size() <= most_columns);
  CHECK(metrics->load.size() >= std::min<std::size_t>(std::size_t(steps), most_columns / 2));
  double first = 0, second = 0, last = 0;
  std::int64_t next = 1;
  for (const LoadColumn& column : metrics->load) {
    CHECK(column.from == next);
    next = column.to + 1;
    first += column.load[0];
    second += column.load[1];
    last += column.load[3];
  }
  CHECK(next == steps + 1);
  CHECK(first == double(steps) * (steps + 1) / 2);
  CHECK(second == steps);
  CHECK(last == 0);
}

TEST_CASE("long columns are thinned to mean, minimum and maximum") {
  const std::vector<double> values{1, 3, NAN, 5, NAN, NAN, 7};
  const Points points = thin(std::span(values), 2);
  CHECK(points.mean[0] == 2);
  CHECK(points.low[0] == 1);
  CHECK(points.high[0] == 3);
  CHECK(points.mean[1] == 5);
  CHECK(std::isnan(points.mean[2]));
  CHECK(std::isnan(points.high[2]));
  CHECK(points.mean[3] == 7);
  const std::vector<std::int64_t> steps{1, 2, 3, 4, 5, 6, 7};
  CHECK(last_of_each(steps, 2) == std::vector<std::int64_t>{2, 4, 6, 7});
  CHECK(records_a_point(most_points) == 1);
  CHECK(records_a_point(most_points + 1) == 2);
}

TEST_CASE("thousands of steps make a page of bounded size") {
  const TemporaryFolder small, large;
  small.write("metrics.jsonl", records(1000));
  large.write("metrics.jsonl", records(60'000));
  const auto few = page_of(small), many = page_of(large);
  REQUIRE((few.ok() && many.ok()));
  CHECK(many->size() < few->size() + 100'000);
  const json run = data_of(*many)["runs"][0];
  CHECK(run["series"]["width"] == 60);
  CHECK(run["series"]["steps"].size() == 1000);
  CHECK(run["series"]["steps"].back() == 60'000);
  CHECK(run["means"]["last_step"] == 60'000);
}

TEST_CASE("tokens, seconds and the lowest losses of a run") {
  const TemporaryFolder folder;
  const std::string speed = R"(, "step_ms": 500, "tokens_per_s": 2000)";
  folder.write("metrics.jsonl", record(1, 4, speed) + record(2, 2, speed) + R"({"step": 2, "held_out_loss": 2.5})" +
                                    "\n" + record(4, 3, R"(, "step_ms": 250, "tokens_per_s": 8000)") +
                                    R"({"step": 4, "held_out_loss": 2.75})" + "\n");
  const json run = data_of(page_of(folder).value())["runs"][0];
  CHECK(run["series"]["tokens"] == json({1000, 2000, 6000}));  // step 3 has no record and counts as step 4
  CHECK(run["series"]["seconds"] == json({0.5, 1.0, 1.5}));
  CHECK(run["means"]["tokens"] == 6000);
  CHECK(run["means"]["seconds"] == 1.5);
  CHECK(run["means"]["loss"]["last"] == 3);
  CHECK(run["means"]["loss"]["least"] == 2);
  CHECK(run["means"]["held_out_loss"]["last"] == 2.75);
  CHECK(run["means"]["held_out_loss"]["least"] == 2.5);
  folder.write("metrics.jsonl", records(2));
  CHECK_FALSE(data_of(page_of(folder).value())["runs"][0]["means"].contains("tokens"));
}

TEST_CASE("text from files is data, never markup") {
  const TemporaryFolder folder;
  const std::string evil = R"(</script><script>document.title='taken'</script><!--<img src=x onerror=alert(1)>&amp;)";
  const json config{{"log", {{evil, evil}}}};
  const json trace{{"traceEvents",
                    {{{"ph", "M"}, {"name", "process_name"}, {"pid", 0}, {"args", {{"name", evil}}}},
                     {{"ph", "X"}, {"name", evil}, {"cat", evil}, {"pid", 0}, {"tid", 0}, {"ts", 1}, {"dur", 2}}}}};
  folder.write("metrics.jsonl", records(3));
  folder.write("config.json", json_text(config));
  folder.write("trace.json", json_text(trace));
  const std::string clean = [&] {
    const TemporaryFolder plain;
    plain.write("metrics.jsonl", records(3));
    return page_of(plain).value();
  }();
  const auto made = test::good(page_of(folder));
  const auto count = [](const std::string& text, const std::string& what) {
    int n = 0;
    for (auto at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++n;
    return n;
  };
  for (const char* what : {"<script", "</script", "<!--", "<img", "&amp;"})
    CHECK(count(*made, what) == count(clean, what));
  const json run = data_of(*made)["runs"][0];  // the text itself is complete
  CHECK(run["config"]["log." + evil] == json_text(json(evil)));
  CHECK(run["timeline"]["names"][0] == evil);
  CHECK(run["timeline"]["rows"][0]["process"] == evil);
}

TEST_CASE("the page holds its scripts and styles byte for byte and fetches nothing") {
  const TemporaryFolder folder;
  folder.write("metrics.jsonl", records(2));
  const std::string made = page_of(folder).value();
  const std::string root = LANCET_SOURCE_DIR;
  for (const char* part : {"/third_party/uplot/uPlot.iife.min.js", "/third_party/uplot/uPlot.min.css",
                           "/src/report/page/page.css", "/src/report/page/page.js", "/src/report/page/charts.js"})
    CHECK((made.find(file(root + part)) != made.npos));
  CHECK(made.find("default-src 'none'") != made.npos);
  CHECK(made.find("src=\"http") == made.npos);
  CHECK(made.find("/*data*/") == made.npos);
}

TEST_CASE("runs of one name are shown under different names") {
  const TemporaryFolder folder;
  for (const char* name : {"a", "b"}) {
    std::filesystem::create_directories(folder / (std::string(name) + "/run"));
    folder.write(std::string(name) + "/run/metrics.jsonl", records(2));
  }
  const std::filesystem::path runs[] = {folder / "a/run", folder / "b/run/", folder / "b/run/"};
  const json data = data_of(page(runs).value())["runs"];
  CHECK(data[0]["name"] == folder / "a/run");
  CHECK(data[1]["name"] == folder / "b/run/" + " (2)");
  CHECK(data[2]["name"] == folder / "b/run/" + " (3)");
  CHECK(data_of(page(std::span(runs, 1)).value())["runs"][0]["name"] == "run");
}

TEST_CASE("a plan's memory along its instructions") {
  const TemporaryFolder folder;
  const auto summary = test::good(read_plan_summary(folder.write("small.ir", plan)));
  CHECK(summary->policy == "dw");
  CHECK(summary->ranks == 2);
  CHECK(summary->predicted_ms == 2.5);
  CHECK_FALSE(summary->exposed_ms.has_value());
  CHECK(summary->parameters == 400);
  CHECK(summary->state == 400);
  CHECK(summary->arena == 192);
  CHECK(summary->live == std::vector<double>{64, 192, 144});  // %0; %0 and %1; %1 and %2
  REQUIRE(summary->largest.size() == 3);
  CHECK(summary->largest[0].name == "%1");
  CHECK(summary->largest[0].made_by == "second forward b");
  folder.write("plan.ir", "not a plan\n");
  check_refused(read_plan_summary(folder / "plan.ir"), "plan.ir: ");
  check_refused(read_plan_summary(folder / "none.ir"), "none.ir: expected a plan");
}

TEST_CASE("the memory in the records of a run") {
  const TemporaryFolder folder;
  folder.write("plan.ir", plan);
  CHECK(data_of(page_of(folder).value())["runs"][0]["memory"].is_null());
  folder.write("memory.json",
               R"({"parameters": 400, "optimizer": 400, "arena": 192, "workspace": 64, "process": 3e7})");
  CHECK(data_of(page_of(folder).value())["runs"][0]["memory"] == json({{"parameters", 400},
                                                                       {"optimizer", 400},
                                                                       {"arena", 192},
                                                                       {"workspace", 64},
                                                                       {"process", 3e7},
                                                                       {"saving", 0}}));
  check_refused(read_memory(folder.write("m.json", "[1]")), "m.json: expected a JSON object");
  check_refused(read_memory(folder.write("m.json", R"({"arena": -1})")), "expected \"arena\" to be a number of bytes");
  check_refused(read_memory(folder.write("m.json", R"({"arena": "1"})")), "expected \"arena\" to be a number of bytes");
}

TEST_CASE("a timeline's rows: predicted first, then ranks") {
  const TemporaryFolder folder;
  const auto path = folder.write("trace.json", R"({"traceEvents": [
    {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "measured, rank 0"}},
    {"ph": "M", "name": "process_sort_index", "pid": 0, "args": {"sort_index": 1}},
    {"ph": "M", "name": "thread_name", "pid": 0, "tid": 1, "args": {"name": "expert"}},
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "predicted"}},
    {"ph": "M", "name": "process_sort_index", "pid": 1, "args": {"sort_index": 0}},
    {"ph": "X", "name": "all_to_all a", "cat": "forward", "pid": 0, "tid": 1, "ts": 1.5, "dur": 2.25},
    {"ph": "X", "name": "all_to_all a", "cat": "dx", "pid": 1, "tid": 0, "ts": 0, "dur": 1}]})");
  const auto timeline = test::good(read_timeline(path));
  REQUIRE(timeline->rows.size() == 2);
  CHECK(timeline->rows[0].process == "predicted");
  CHECK(timeline->rows[1].process == "measured, rank 0");
  CHECK(timeline->rows[1].stream == "expert");
  CHECK(timeline->rows[1].events[0].start == 1.5);
  CHECK(timeline->rows[1].events[0].length == 2.25);
  CHECK(timeline->names == std::vector<std::string>{"all_to_all a"});
  CHECK(timeline->kinds[timeline->rows[0].events[0].kind] == "dx");
  check_refused(read_timeline(folder.write("t.json", "{}")), "t.json: expected a JSON object");
  check_refused(read_timeline(folder.write("t.json", R"({"traceEvents": [{"ph": "X", "name": "a"}]})")),
                "found event 0 without");
  check_refused(read_timeline(folder.write("t.json", std::string(200'000, '['))), "t.json: expected");
}

namespace {

const char* overlapped = R"(plan {policy=dw, ranks=2, predicted_ms=4.0}
arena 192
program small
input @x : f32[8]
[0] %0 : f32[8] = gelu(@x)  # compute forward a | at 0 | ms 0.0 1.0
[1] %1 : f32[8] = all_gather(%0) {shards=1, axis=0}  # expert forward h.0.b | wait 0 | at 64 | ms 1.0 3.0
[2] %2 : f32[8] = gelu(%0)  # compute dw c | at 128 | ms 1.0 2.0
output loss = %2
)";

// An event of rank `pid`; pid 2 is the prediction.
std::string event(int pid, const std::string& name, int index, int begin_us, int us) {
  return fmt::format(
      R"({{"ph": "X", "name": "{}", "cat": "x", "pid": {}, "tid": {}, "ts": {}, "dur": {}, "args": {{"index": {}}}}})",
      name, pid, index == 1, begin_us, us, index);
}

std::string trace_of(const std::string& name_of_first) {
  std::string events;
  for (int pid = 0; pid < 2; ++pid) {
    events += fmt::format(
        R"({{"ph": "M", "name": "process_name", "pid": {}, "args": {{"name": "measured, rank {}"}}}},)", pid, pid);
    // Of 4 ms, 1 ms is beside c on rank 0 and 3 ms on rank 1.
    events += event(pid, name_of_first, 0, 0, 1000) + "," + event(pid, "all_gather h.0.b", 1, 1000, 4000) + "," +
              event(pid, "gelu c", 2, 1000, pid == 0 ? 1000 : 3000) + ",";
  }
  events += R"({"ph": "M", "name": "process_name", "pid": 2, "args": {"name": "predicted"}},)";
  return R"({"traceEvents": [)" + events + event(2, "gelu a", 0, 0, 1000) + "]}";
}

}  // namespace

TEST_CASE("what hides each communication, predicted beside measured") {
  const TemporaryFolder folder;
  folder.write("metrics.jsonl", records(2));
  folder.write("plan.ir", overlapped);
  const auto row = [&] {
    const json run = data_of(page_of(folder).value())["runs"][0];
    REQUIRE(run["communications"].size() == 1);
    return run["communications"][0];
  };
  const json predicted = json::object({{"ms", 2}, {"hidden_ms", 1}, {"by", "c dw 1.00"}});
  CHECK(row()["site"] == "h.0.b");
  CHECK(row()["pass"] == "forward");
  CHECK(row()["predicted"] == predicted);
  CHECK(row()["measured"].is_null());
  folder.write("trace.json", trace_of("gelu a"));
  CHECK(row()["predicted"] == predicted);
  CHECK(row()["measured"] == json::object({{"ms", 4}, {"hidden_ms", 2}, {"by", "c dw 2.00"}}));
  folder.write("trace.json", trace_of("gelu of_another_plan"));
  CHECK(row()["predicted"] == predicted);
  CHECK(row()["measured"].is_null());
  const json left_out = data_of(page_of(folder).value())["runs"][0]["left_out"];
  CHECK(json_text(left_out).find("found event 'gelu of_another_plan'") != std::string::npos);
}

TEST_CASE("configs with any fields, but of limited depth") {
  const TemporaryFolder folder;
  const auto fields =
      test::good(read_config(folder.write("c.json", R"({"train": {"lr": 0.5, "x": []}, "threads": 2})")));
  CHECK(*fields == std::map<std::string, std::string>{{"threads", "2"}, {"train.lr", "0.5"}, {"train.x", "[]"}});
  check_refused(read_config(folder.write("c.json", std::string(100'000, '['))),
                "c.json: expected JSON of at most 100 nested brackets");
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  check_refused(read_config(folder.write("c.json", deep)), "c.json: expected JSON of at most 100 nested brackets");
}

TEST_CASE("broken or missing files are left out with the reason, and the rest is drawn") {
  const TemporaryFolder folder;
  folder.write("metrics.jsonl", records(3));
  folder.write("config.json", R"({"threads": 2})");
  folder.write("plan.ir", plan);
  struct Case {
    const char *name, *text, *reason;  // text: null removes the file
  };
  const auto given =
      GENERATE(values<Case>({{"metrics.jsonl", nullptr, "no such file"},
                             {"metrics.jsonl", "nothing\n", "expected records of steps, found none"},
                             {"config.json", nullptr, "expected a run's config, found no such file"},
                             {"config.json", "{\"threads\": ", "config.json:1:13: expected JSON: "},
                             {"config.json", "[]", "expected a JSON object, found array"},
                             {"plan.ir", nullptr, "expected a plan, found no such file"},
                             {"plan.ir", "plan {policy=dw", "line 1"},
                             {"plan.ir", "", "expected a plan, found no instruction"},
                             {"memory.json", "{", "memory.json: expected a JSON object, found none"},
                             {"trace.json", "[]", "expected a JSON object with \"traceEvents\", found none"}}));
  const std::string path = folder / given.name;
  if (given.text)
    folder.write(given.name, given.text);
  else
    std::filesystem::remove(path);
  const test::LogCapture log;
  const auto made = test::good(page_of(folder));
  const json run = data_of(*made)["runs"][0];
  REQUIRE(run["left_out"].size() == 1);
  const auto reason = run["left_out"][0].get<std::string>();
  INFO(reason);
  CHECK(reason.find(path + ":") != std::string::npos);
  CHECK(reason.find(given.reason) != std::string::npos);
  CHECK(log.count("warning: left out: " + reason) == 1);
  const std::string name = given.name;
  CHECK(run["series"]["steps"].size() == (name == "metrics.jsonl" ? 0 : 3));
  CHECK(run["config"].size() == (name == "config.json" ? 0 : 1));
  CHECK(run["plan"].is_null() == (name == "plan.ir"));
  CHECK(run["timeline"].is_null());
}

TEST_CASE("a folder without a run") {
  const TemporaryFolder folder;
  const auto refused = [](const std::filesystem::path& run) { return page(std::span(&run, 1)); };
  check_refused(refused(folder / "none"), "none: no such folder");
  check_refused(refused(folder / ""), "nothing in this folder can be shown: ");
  check_refused(refused(folder / ""), "metrics.jsonl: no such file");
  check_refused(refused(folder.write("metrics.jsonl", "")), "metrics.jsonl: not a folder");
  check_refused(refused(folder / ""), "metrics.jsonl: expected records of steps, found none");
}

}  // namespace lancet::report
