// Experiment files, sweeps that are interrupted, and what simulation must come to where it can be told by hand.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "declared_hardware.h"
#include "lancet/base/atomic_file.h"
#include "lancet/experiment/run.h"
#include "lancet/train/plan.h"
#include "program.h"

namespace lancet {
namespace {

using namespace experiment;
using test::TemporaryFolder;

// A model of two blocks, one of them MoE, on a machine of round numbers, with every policy.
struct Files {
  TemporaryFolder folder;
  std::string config = folder.write("small.json", test::small_config);
  std::string machine = folder.write("machine.json", test::declared_hardware());
  std::string settings = folder.write("settings.json", R"({"models": {"small": {"config": ")" + config + R"("}},
    "policies": {"sequential": {"set": ["overlap.policy=sequential"]}, "Tutel": {"set": ["overlap.policy=expert_pipeline"]},
                 "FasterMoE": {"set": ["overlap.policy=peer_groups"]}, "dW": {"set": ["overlap.policy=dw"]},
                 "partition": {"set": ["overlap.policy=partition"]}, "Lancet": {"set": ["overlap.policy=lancet"]}}})");

  std::string grid(const std::string& changes = "") const {
    return R"("on": ")" + machine + R"(", "models": ["small"], "gates": ["switch"], "ranks": [2, 4],
      "policies": ["sequential", "Tutel", "FasterMoE", "dW", "partition", "Lancet"])" +
           changes;
  }
  std::string experiment(const std::string& grid) const {
    return folder.write("test.json", R"({"title": "a test", "grids": [{)" + grid + "}]}");
  }
  Experiment read() const {
    auto result = read_experiment(experiment(grid()), "", "program");
    INFO((result.ok() ? "" : result.error().message));
    REQUIRE(result.ok());
    return *result;
  }
  std::string refused(const std::string& text) const {
    const auto result = read_experiment(folder.write("bad.json", text), "", "program");
    REQUIRE_FALSE(result.ok());
    CHECK(result.error().code == ExitCode::config);
    return result.error().message;
  }
};

const Origin origin{"0123456789", "even"};
void silent(const std::string&) {}

Outcome made_up(const Point& point) {
  Outcome outcome;
  outcome.runs = point.policy;
  outcome.times.step = double(point.ranks);
  return outcome;
}

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const auto at = text.find(what);
  REQUIRE(at != std::string::npos);
  return text.replace(at, what.size(), with);
}

std::vector<Outcome> simulated(const Experiment& experiment) {
  std::vector<Outcome> outcomes;
  for (const Point& point : experiment.points) {
    auto outcome = simulate(experiment, point);
    INFO((outcome.ok() ? "" : outcome.error().message));
    REQUIRE(outcome.ok());
    outcomes.push_back(*outcome);
  }
  return outcomes;
}

}  // namespace

TEST_CASE("an experiment is the product of its lists, in their order") {
  const Files files;
  const Experiment experiment = files.read();
  CHECK(experiment.name == "test");
  REQUIRE(experiment.points.size() == 12);
  CHECK(experiment.points[0].policy == "sequential");
  CHECK(experiment.points[0].ranks == 2);
  CHECK(experiment.points[0].hosts == 1);
  CHECK(experiment.points[11].policy == "Lancet");
  CHECK(experiment.points[11].ranks == 4);
  CHECK(experiment.points[11].config.overlap.policy == config::Policy::lancet);
  CHECK(experiment.points[0].source == Source::simulated);
  std::set<std::string> ids;
  for (const Point& point : experiment.points) ids.insert(point.id);
  CHECK(ids.size() == 12);
  const auto here = read_experiment(files.experiment(files.grid()), "this", "program");
  REQUIRE(here.ok());
  CHECK(here->points[0].source == Source::measured);
  CHECK(here->points[0].id != experiment.points[0].id);
  const auto newer = read_experiment(files.experiment(files.grid()), "", "another program");
  CHECK(newer->points[0].id != experiment.points[0].id);
}

TEST_CASE("an experiment says what is wrong with it, and where") {
  const Files files;
  auto with_grid = [&](const std::string& grid) { return R"({"title": "t", "grids": [{)" + grid + "}]}"; };
  const std::string grid = files.grid();
  CHECK(files.refused(with_grid(replaced(grid, "\"Lancet\"", "\"Lancelot\"")))
            .find("grids[0].policies: expected some of FasterMoE, Lancet, Tutel, dW, partition, sequential, found "
                  "'Lancelot'") != std::string::npos);
  CHECK(files.refused(with_grid(replaced(grid, "\"small\"", "\"huge\"")))
            .find("grids[0].models: expected some of small, found 'huge'") != std::string::npos);
  CHECK(files.refused(with_grid(replaced(grid, files.machine, "pdp-11"))).find("found 'pdp-11'") != std::string::npos);
  CHECK(files.refused(with_grid(replaced(grid, "[2, 4]", "[2, 3]"))).find("grids[0] (3 ranks)") != std::string::npos);
  CHECK(files.refused(with_grid(replaced(grid, "[2, 4]", "[0]"))).find("expected integers from 1 to 65536, found 0") !=
        std::string::npos);
  CHECK(files.refused(with_grid(replaced(grid, "[\"switch\"]", "[\"router\"]"))).find("model.router") !=
        std::string::npos);
  CHECK(files.refused(with_grid(files.grid(R"(, "colour": 1)"))).find("'colour'") != std::string::npos);
  CHECK(files.refused(R"({"title": "t", "grids": []})").find("grids: expected a list of grids") != std::string::npos);
  CHECK(files.refused("{").find("syntax error") != std::string::npos);
  CHECK(files.refused("[]").find("expected an object") != std::string::npos);
}

TEST_CASE("an interrupted sweep goes on from where it was") {
  const Files files;
  const Experiment experiment = files.read();
  const std::string path = files.folder / "out" + "/points.jsonl";
  int calls = 0;
  auto until_five = [&](const Experiment&, const Point& point) -> Result<Outcome> {
    if (++calls == 6) return internal_error("interrupted");
    return made_up(point);
  };
  REQUIRE_FALSE(sweep(experiment, path, until_five, origin, origin, silent).ok());
  REQUIRE(lines_of(path).size() == 5);
  {  // and in the middle of a line
    std::ofstream(path, std::ios::app) << lines_of(path)[0].substr(0, 40);
  }
  calls = 0;
  std::vector<std::string> said;
  const auto report = sweep(
      experiment, path,
      [&](const Experiment&, const Point& point) -> Result<Outcome> { return ++calls, made_up(point); }, origin, origin,
      [&](const std::string& line) { said.push_back(line); });
  REQUIRE(report.ok());
  CHECK(calls == 7);
  CHECK(report->done == 7);
  CHECK(report->skipped == 5);
  REQUIRE(said.size() == 7);
  CHECK(said[0].starts_with("test 1/7: "));
  CHECK(said[0].ends_with(" left"));
  CHECK(said[6].ends_with("4 ranks, Lancet: 4.0 ms"));
  const auto lines = lines_of(path);
  REQUIRE(lines.size() == 12);
  for (std::size_t i = 0; i < 12; ++i) {
    const auto record = nlohmann::json::parse(lines[i]);
    CHECK(record["id"] == experiment.points[i].id);
    CHECK(record["network"] == "simulated");
    CHECK(record["commit"] == "0123456789");
    CHECK(record["routing"] == "even");
    CHECK(record["step_ms"] == double(experiment.points[i].ranks));
  }
  calls = 0;
  REQUIRE(sweep(experiment, path, until_five, origin, origin, silent).ok());
  CHECK(calls == 0);
}

TEST_CASE("records of another program are set aside, other lines are refused") {
  const Files files;
  const Experiment experiment = files.read();
  const std::string path = files.folder / "points.jsonl";
  auto run = [](const Experiment&, const Point& point) -> Result<Outcome> { return made_up(point); };
  REQUIRE(sweep(experiment, path, run, origin, origin, silent).ok());
  const auto newer = read_experiment(files.experiment(files.grid()), "", "another program");
  REQUIRE(sweep(*newer, path, run, origin, origin, silent).ok());
  CHECK(lines_of(path).size() == 12);
  CHECK(lines_of(path + ".1").size() == 12);
  std::ofstream(path, std::ios::app) << "not a record\n";
  const auto report = sweep(*newer, path, run, origin, origin, silent);
  REQUIRE_FALSE(report.ok());
  CHECK(report.error().code == ExitCode::data);
  CHECK(report.error().message.find("points.jsonl:13: expected a record of a sweep") != std::string::npos);
}

TEST_CASE("two simulations of a point write the same line") {
  const Files files;
  const Experiment experiment = files.read();
  const auto first = simulated(experiment), second = simulated(experiment);
  for (std::size_t i = 0; i < first.size(); ++i)
    CHECK(to_line(experiment, experiment.points[i], first[i], origin) ==
          to_line(experiment, experiment.points[i], second[i], origin));
}

TEST_CASE("where communication costs nothing every policy takes the compute time, whole") {
  const Files files;
  files.folder.write("machine.json", test::declared_hardware({.wire = 1e9, .latency_us = 0, .core_share = 0}));
  const auto outcomes = simulated(files.read());
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    CHECK(outcomes[i].times.step == Approx(outcomes[i / 6 * 6].times.compute).epsilon(1e-6));
    CHECK(outcomes[i].parts == 1);
  }
}

TEST_CASE("on a slow wire policies overlap, and none is longer than sequential") {
  const Files files;
  const Experiment experiment = files.read();
  const auto outcomes = simulated(experiment);
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const Outcome &sequential = outcomes[i / 6 * 6], &outcome = outcomes[i];
    INFO(experiment.points[i].describe());
    CHECK(outcome.status == "ok");
    CHECK(outcome.times.step <= sequential.times.step);
    CHECK(outcome.times.exposed <= outcome.times.communication);
    CHECK(outcome.times.step >= outcome.times.compute);
    CHECK(outcome.forward_ms.value() > 0);
    CHECK(outcome.forward_ms.value() < outcome.times.step);
    CHECK(outcome.experts_ms.value() > 0);
    CHECK(outcome.memory_gib > 0);
  }
  const Outcome &lancet = outcomes[5], &sequential = outcomes[0];
  CHECK(lancet.times.step < 0.95 * sequential.times.step);
  CHECK(lancet.runs == "lancet");
}

TEST_CASE("a model that does not fit the device is marked, not refused") {
  const Files files;
  files.folder.write("machine.json", test::declared_hardware({.memory_gib = 1e-5}));
  const Experiment experiment = files.read();
  const auto outcome = simulate(experiment, experiment.points[0]);
  REQUIRE(outcome.ok());
  CHECK(outcome->status == "out of memory");
  CHECK(outcome->memory_gib > 1e-5);
  const auto record = nlohmann::json::parse(to_line(experiment, experiment.points[0], *outcome, origin));
  CHECK(record["status"] == "out of memory");
  CHECK_FALSE(record.contains("step_ms"));
}

TEST_CASE("bench sweep runs an experiment and refuses a bad one with a line") {
  const Files files;
  const std::string experiment = files.experiment(files.grid()), out = files.folder / "out";
  const auto outcome = test::lancet("bench sweep " + experiment + " --out " + out);
  INFO(outcome.output);
  REQUIRE(outcome.code == 0);
  CHECK(lines_of(out + "/points.jsonl").size() == 12);
  CHECK(outcome.lines_with("test 12/12: ") == 1);
  const auto again = test::lancet("bench sweep " + experiment + " --out " + out);
  CHECK(again.code == 0);
  CHECK(again.lines_with("12 points, 12 were there, 0 failed") == 1);
  for (const std::string& bad : {std::string("no-such-file.json"), experiment + " --on pdp-11", files.machine}) {
    const auto refused = test::lancet("bench sweep " + bad + " --out " + out);
    INFO(refused.output);
    CHECK(refused.code == 2);
    CHECK(refused.lines_with("expected") == 1);
  }
}

TEST_CASE("plan --on plans for a declared machine") {
  const Files files;
  const auto outcome = test::lancet("plan " + files.config + " --ranks 4 --on " + files.machine);
  INFO(outcome.output);
  REQUIRE(outcome.code == 0);
  CHECK(outcome.lines_with("costs: machine, declared: 4 ranks on 2 nodes") == 1);
  CHECK(outcome.lines_with("memory: 0.0 GiB of 15.0 GiB") == 1);
  CHECK(test::lancet("plan " + files.config + " --ranks 2 --on pdp-11").code == 2);
  files.folder.write("machine.json", replaced(test::declared_hardware(), "\"nics\"", "\"nicks\""));
  const auto bad = test::lancet("plan " + files.config + " --ranks 2 --on " + files.machine);
  CHECK(bad.code == 2);
  CHECK(bad.lines_with("network") == 1);
}

}  // namespace lancet
