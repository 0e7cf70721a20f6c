// A small experiment for tests: its files, its points, and outcomes that are made up or simulated.
#pragma once
#include <catch2/catch.hpp>

#include "declared_hardware.h"
#include "lancet/experiment/run.h"
#include "program.h"
#include "text.h"

namespace lancet::small_experiment {

using namespace experiment;
using test::replaced;
using test::TemporaryFolder;

const inline Identity here{"simulator", "machine"};

// A model of two blocks, one of them MoE, on a machine of round numbers, with every policy.
struct Files {
  TemporaryFolder folder;
  std::string config = folder.write("small.json", test::small_config_text);
  std::string machine = folder.write("machine.json", test::declared_hardware());
  std::string settings_text = R"({"models": {"small": {"config": ")" + config + R"("}},
    "policies": {"sequential": {"set": ["overlap.policy=sequential"]}, "Tutel": {"set": ["overlap.policy=tutel"]},
                 "FasterMoE": {"set": ["overlap.policy=fastermoe"]}, "dW": {"set": ["overlap.policy=dw"]},
                 "partition": {"set": ["overlap.policy=partition"]}, "Lancet": {"set": ["overlap.policy=lancet"]}}})";
  std::string settings = folder.write("settings.json", settings_text);

  std::string grid(const std::string& changes = "") const {
    return R"("on": ")" + machine + R"(", "models": ["small"], "gates": ["switch"], "ranks": [2, 4],
      "policies": ["sequential", "Tutel", "FasterMoE", "dW", "partition", "Lancet"])" +
           changes;
  }
  std::string experiment(const std::string& grid) const {
    return folder.write("test.json", R"({"title": "a test", "grids": [{)" + grid + "}]}");
  }
  // 24 points: both gates, 2 and 4 ranks, six policies.
  Experiment read_with_both_gates() const {
    std::string both = grid();
    both.replace(both.find("[\"switch\"]"), std::string("[\"switch\"]").size(), "[\"switch\", \"batch_prioritized\"]");
    auto result = read_experiment(experiment(both), "", here);
    REQUIRE(result.ok());
    return *result;
  }
  Experiment read() const {
    auto result = read_experiment(experiment(grid()), "", here);
    INFO((result.ok() ? "" : result.error().message));
    REQUIRE(result.ok());
    return *result;
  }
  std::string refused(const std::string& text) const {
    const auto result = read_experiment(folder.write("bad.json", text), "", here);
    REQUIRE_FALSE(result.ok());
    CHECK(result.error().code == ExitCode::config);
    return result.error().message;
  }
};

const inline SweepOptions options{"0123456789"};
inline void silent(const std::string&) {}

inline Outcome made_up(const Point& point) {
  Outcome outcome;
  outcome.runs = point.policy;
  outcome.times.step = double(point.ranks);
  return outcome;
}

inline std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

inline std::vector<Outcome> simulated(const Experiment& experiment) {
  std::vector<Outcome> outcomes;
  for (const Point& point : experiment.points) {
    auto outcome = simulate(experiment, point);
    INFO((outcome.ok() ? "" : outcome.error().message));
    REQUIRE(outcome.ok());
    outcomes.push_back(*outcome);
  }
  return outcomes;
}

}  // namespace lancet::small_experiment
