// Sweeps: their records, interruptions and failures, and records that are set aside.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "file_limit.h"
#include "lancet/base/atomic_file.h"
#include "lancet/experiment/run.h"
#include "small_experiment.h"
#include "text.h"

namespace lancet {
namespace {

using namespace experiment;
using namespace small_experiment;

}  // namespace

TEST_CASE("an interrupted sweep resumes at the next point") {
  const Files files;
  const Experiment experiment = files.read();
  const std::string path = files.folder / "out" + "/points.jsonl";
  int calls = 0;
  auto until_five = [&](const Experiment&, const Point& point) -> Result<Outcome> {
    if (++calls == 6) return internal_error("interrupted");
    return made_up(point);
  };
  REQUIRE_FALSE(sweep(experiment, path, until_five, options, silent).ok());
  REQUIRE(lines_of(path).size() == 5);
  {  // also in the middle of a line
    std::ofstream(path, std::ios::app) << lines_of(path)[0].substr(0, 40);
  }
  calls = 0;
  std::vector<std::string> said;
  const auto report = sweep(
      experiment, path,
      [&](const Experiment&, const Point& point) -> Result<Outcome> { return ++calls, made_up(point); }, options,
      [&](const std::string& line) { said.push_back(line); });
  REQUIRE(report.ok());
  CHECK(calls == 7);
  CHECK(report->done == 7);
  CHECK(report->skipped == 5);
  REQUIRE(said.size() == 8);
  CHECK(said[0] == path + ":6: an interruption cut this record short; it is dropped and its point runs again");
  CHECK(said[1].starts_with("test 1/7: "));
  CHECK(said[1].ends_with(" left"));
  CHECK(said[7].ends_with("4 ranks, Lancet: 4.0 ms"));
  const auto lines = lines_of(path);
  REQUIRE(lines.size() == 12);
  for (std::size_t i = 0; i < 12; ++i) {
    const auto record = test::json_in(lines[i]);
    CHECK(record["id"] == experiment.points[i].id);
    CHECK(record["network"] == "simulated");
    CHECK(record["commit"] == "0123456789");
    CHECK(record["routing"] == "even: every expert gets the same tokens, none is dropped");
    CHECK(record["step_ms"] == double(experiment.points[i].ranks));
  }
  calls = 0;
  REQUIRE(sweep(experiment, path, until_five, options, silent).ok());
  CHECK(calls == 0);
}

TEST_CASE("failed points are counted, and run again") {
  const Files files;
  const Experiment experiment = files.read();
  const std::string path = files.folder / "points.jsonl";
  auto some_fail = [](const Experiment&, const Point& point) -> Result<Outcome> {
    Outcome outcome = made_up(point);
    if (point.policy == "dW") outcome.status = "failed", outcome.why = "a rank left", outcome.exit_code = 5;
    if (point.policy == "Tutel") outcome.status = "out of memory";
    return outcome;
  };
  const auto first = sweep(experiment, path, some_fail, options, silent);
  REQUIRE(first.ok());
  CHECK(first->failed == 2);
  CHECK(first->done == 10);
  CHECK(first->out_of_memory == 2);
  CHECK(first->first_exit_code == 5);
  CHECK(first->first_failure.ends_with("2 ranks, dW: a rank left"));
  REQUIRE(lines_of(path).size() == 12);
  const std::string table = step_table(experiment, first->results);
  CHECK(table.starts_with("step, ms                            sequential          Tutel      FasterMoE  "));
  for (const int ranks : {2, 4}) {
    const std::string ms = std::to_string(ranks) + ".0";
    CHECK(table.find("\nmachine, small, switch, " + std::to_string(ranks) + " ranks            " + ms +
                     "  out of memory            " + ms + "         failed            " + ms + "            " + ms +
                     "\n") != std::string::npos);
  }
  std::vector<std::string> again;
  const auto second = sweep(
      experiment, path,
      [&](const Experiment&, const Point& point) -> Result<Outcome> {
        return again.push_back(point.describe()), made_up(point);
      },
      options, silent);
  REQUIRE(second.ok());
  CHECK(second->failed == 0);
  CHECK(second->skipped == 10);
  CHECK(step_table(experiment, second->results).find("failed") == std::string::npos);  // recorded points are in it, too
  REQUIRE(again.size() == 2);
  CHECK(again[0].ends_with("2 ranks, dW"));
  CHECK(again[1].ends_with("4 ranks, dW"));
  const auto lines = lines_of(path);
  REQUIRE(lines.size() == 12);
  for (const std::string& line : lines) CHECK(test::json_in(line)["status"] != "failed");
}

TEST_CASE("a fresh sweep sets all records aside and runs every point") {
  const Files files;
  const Experiment experiment = files.read();
  const std::string path = files.folder / "points.jsonl";
  int calls = 0;
  auto run = [&](const Experiment&, const Point& point) -> Result<Outcome> { return ++calls, made_up(point); };
  REQUIRE(sweep(experiment, path, run, options, silent).ok());
  REQUIRE(sweep(experiment, path, run, {.commit = "1", .fresh = true, .stop = nullptr}, silent).ok());
  CHECK(calls == 24);
  CHECK(lines_of(path).size() == 12);
  CHECK(lines_of(path + ".1").size() == 12);
}

TEST_CASE("a broken line among records is reported with --fresh as the remedy, which works") {
  const Files files;
  const Experiment experiment = files.read();
  const std::string path = files.folder / "points.jsonl";
  int calls = 0;
  auto run = [&](const Experiment&, const Point& point) -> Result<Outcome> { return ++calls, made_up(point); };
  REQUIRE(sweep(experiment, path, run, options, silent).ok());
  const std::string good = *read_file(path, "records");
  const auto lines = lines_of(path);
  for (const std::string& broken : {lines[2].substr(0, 40), std::string("{\"id\": 3}"), std::string(200'000, '['),
                                    std::string(5, '\0'), std::string("[1e999]")}) {
    files.folder.write("points.jsonl", replaced(good, lines[2], broken));
    const auto refused = sweep(experiment, path, run, options, silent);
    REQUIRE_FALSE(refused.ok());
    INFO(refused.error().message);
    CHECK(refused.error().code == ExitCode::data);
    CHECK(refused.error().message.starts_with(path + ":3: expected a record of a sweep, found "));
    CHECK(refused.error().message.ends_with(
        "; delete the line to run its point again, or use --fresh to run all points again"));
    CHECK(refused.error().message.size() < 400);
  }
  calls = 0;
  REQUIRE(sweep(experiment, path, run, {.commit = "1", .fresh = true, .stop = nullptr}, silent).ok());
  CHECK(calls == 12);
  CHECK(lines_of(path).size() == 12);
  CHECK(lines_of(path + ".1").size() == 12);  // the broken line, too
  // Deleted lines and empty ones, a last line without its end, a point that occurs twice.
  files.folder.write("points.jsonl", replaced(good, lines[2] + "\n", "\n" + lines[3] + "\n")
                                         .substr(0, good.size() - lines[2].size() + lines[3].size()));
  calls = 0;
  std::vector<std::string> said;
  REQUIRE(sweep(experiment, path, run, options, [&](const std::string& line) { said.push_back(line); }).ok());
  CHECK(calls == 1);
  CHECK(said.size() == 1);
  CHECK(lines_of(path).size() == 12);
  CHECK(lines_of(path + ".2") == std::vector{lines[3]});
}

TEST_CASE("a record that does not fit the disk is an error with the reason") {
  const Files files;
  const Experiment experiment = files.read();
  const std::string path = files.folder / "points.jsonl";
  auto file = RecordFile::open(path, experiment.points);
  REQUIRE(file.ok());
  REQUIRE(file->append(R"({"id": "1"})").ok());
  const test::FileLimit full(10);  // the first bytes of the record fit
  errno = 0;
  const Status status = file->append(R"({"id": "0123456789"})");
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().message == "cannot write " + path + ": File too large");
  CHECK_FALSE(file->has("2"));
}

TEST_CASE("a folder that is in use or not writable is reported before the first point of a sweep") {
  const Files files;
  const Experiment experiment = files.read();
  const std::string path = files.folder / "out/points.jsonl";
  int calls = 0;
  auto run = [&](const Experiment&, const Point& point) -> Result<Outcome> {
    const auto second = sweep(
        experiment, path,
        [&](const Experiment&, const Point& other) -> Result<Outcome> { return ++calls, made_up(other); }, options,
        silent);
    REQUIRE_FALSE(second.ok());
    CHECK(second.error().code == ExitCode::data);
    CHECK(second.error().message ==
          (files.folder / "out") + ": expected a folder that no other sweep writes to, found one at work there");
    return made_up(point);
  };
  REQUIRE(sweep(experiment, path, run, options, silent).ok());
  CHECK(calls == 0);
  CHECK(lines_of(path).size() == 12);
  auto counted = [&](const Experiment&, const Point& point) -> Result<Outcome> { return ++calls, made_up(point); };
  std::filesystem::create_directories(files.folder / "taken/points.jsonl");
  for (const std::string& folder :
       {std::string("/proc"), std::string("/proc/none"), files.machine, files.folder / "taken"}) {
    const auto refused = sweep(experiment, folder + "/points.jsonl", counted, options, silent);
    REQUIRE_FALSE(refused.ok());
    INFO(refused.error().message);
    CHECK(refused.error().code == ExitCode::data);
    CHECK(refused.error().message.find("cannot ") == 0);
    CHECK(refused.error().message.find(folder) != std::string::npos);
  }
  CHECK(calls == 0);
}

TEST_CASE("a sweep that a signal stops keeps its records") {
  const Files files;
  const Experiment experiment = files.read();
  const std::string path = files.folder / "points.jsonl";
  std::atomic<int> stop{0};
  auto run = [&](const Experiment&, const Point& point) -> Result<Outcome> {
    if (point.policy == "dW") stop = 15;
    return made_up(point);
  };
  const auto report = sweep(experiment, path, run, {.commit = "1", .fresh = false, .stop = &stop}, silent);
  REQUIRE_FALSE(report.ok());
  CHECK(report.error().code == ExitCode::saved);
  CHECK(report.error().message.find("stopped: 4 of 12 points are in ") == 0);
  CHECK(lines_of(path).size() == 4);
}

TEST_CASE("records of another simulator are set aside, other lines are refused") {
  const Files files;
  const Experiment experiment = files.read();
  const std::string path = files.folder / "points.jsonl";
  auto run = [](const Experiment&, const Point& point) -> Result<Outcome> { return made_up(point); };
  REQUIRE(sweep(experiment, path, run, options, silent).ok());
  const auto newer = read_experiment(files.experiment(files.grid()), "", {"another simulator", "machine"});
  REQUIRE(sweep(*newer, path, run, options, silent).ok());
  CHECK(lines_of(path).size() == 12);
  CHECK(lines_of(path + ".1").size() == 12);
  std::ofstream(path, std::ios::app) << "not a record\n";
  const auto report = sweep(*newer, path, run, options, silent);
  REQUIRE_FALSE(report.ok());
  CHECK(report.error().code == ExitCode::data);
  CHECK(report.error().message.find("points.jsonl:13: expected a record of a sweep") != std::string::npos);
}

}  // namespace lancet
