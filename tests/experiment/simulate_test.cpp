// Simulation results that can be computed by hand.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "declared_hardware.h"
#include "lancet/base/atomic_file.h"
#include "lancet/experiment/run.h"
#include "lancet/ir/plan.h"
#include "lancet/planning/from_config.h"
#include "small_experiment.h"
#include "text.h"

namespace lancet {
namespace {

using namespace experiment;
using namespace small_experiment;

// The computation time of a point, summed over the instructions of a plan without any overlap.
double computation_of(const Point& point) {
  const cost::HardwareCosts costs(*cost::read_hardware(point.on), {point.ranks, point.hosts});
  config::Config config = point.config;
  config.overlap.policy = "sequential";
  const auto plan = planning::plan_step(config, point.ranks, {.costs = &costs});
  REQUIRE(plan.ok());
  double ms = 0;
  for (const ir::Instruction& at : plan->program.instructions)
    if (at.stream == ir::Stream::compute && cost::is_local(plan->program, at))
      ms += costs.op_ms(plan->program, at).value();
  return ms;
}

}  // namespace

TEST_CASE("two simulations of a point write the same line, for every policy and gate") {
  const Files files;
  const Experiment experiment = files.read_with_both_gates();
  const auto first = simulated(experiment), second = simulated(experiment);
  REQUIRE(first.size() == 24);
  for (std::size_t i = 0; i < first.size(); ++i)
    CHECK(to_line(experiment, experiment.points[i], first[i], options.commit) ==
          to_line(experiment, experiment.points[i], second[i], options.commit));
}

TEST_CASE("a plan file is simulated as it is, and takes what its policy was predicted to take") {
  const Files files;
  const Experiment experiment = files.read();
  for (const Point& point : experiment.points) {
    const cost::HardwareCosts costs(*cost::read_hardware(point.on), {point.ranks, point.hosts});
    const auto plan = planning::plan_step(point.config, point.ranks, {.costs = &costs});
    REQUIRE(plan.ok());
    Point from_file = point;
    from_file.config.overlap.policy = "sequential";  // the file's schedule counts
    from_file.plan = files.folder.write("plan.ir", ir::print(*plan));
    const auto outcome = simulate(experiment, from_file);
    INFO(point.describe() << (outcome.ok() ? "" : outcome.error().message));
    REQUIRE(outcome.ok());
    CHECK(outcome->times.step == Approx(simulate(experiment, point)->times.step));
    CHECK(outcome->runs == "a plan file");
  }
}

TEST_CASE("a policy can be a plan file, whose text is part of its points' ids") {
  const Files files;
  const Experiment experiment = files.read();
  const cost::HardwareCosts costs(*cost::read_hardware(files.machine), {2, 1});
  const ir::Plan plan = *planning::plan_step(experiment.points[0].config, 2, {.costs = &costs});
  const std::string path = files.folder.write("plan.ir", ir::print(plan));
  const std::string settings = *read_file(files.settings, "settings");
  files.folder.write("settings.json", replaced(settings, R"("sequential": {"set": ["overlap.policy=sequential"]})",
                                               R"("sequential": {"plan": ")" + path + "\"}"));
  std::string grid = replaced(files.grid(), "[2, 4]", "[2]");
  grid = grid.substr(0, grid.find("\"policies\"")) + R"("policies": ["sequential"])";
  const auto read = read_experiment(files.experiment(grid), "", here);
  INFO((read.ok() ? "" : read.error().message));
  REQUIRE(read.ok());
  CHECK(simulate(*read, read->points[0])->times.step == Approx(plan.header.real("predicted_ms", 0)));
  files.folder.write("plan.ir", ir::print(plan) + "\n");
  CHECK(read_experiment(files.experiment(grid), "", here)->points[0].id != read->points[0].id);
  CHECK(read_experiment(files.experiment(grid), "this", here)
            .error()
            .message.find("expected simulated points where a policy is a plan file") != std::string::npos);
  std::filesystem::remove(path);
  CHECK(read_experiment(files.experiment(grid), "", here)
            .error()
            .message.find("policies.sequential.plan: expected the path of a plan file, found ") != std::string::npos);
}

TEST_CASE("with free communication every policy takes the whole compute time, with every gate") {
  const Files files;
  files.folder.write("machine.json", test::declared_hardware({.network = 1e9, .latency_us = 0, .core_share = 0}));
  const Experiment experiment = files.read_with_both_gates();
  const auto outcomes = simulated(experiment);
  REQUIRE(outcomes.size() == 24);
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    INFO(experiment.points[i].describe());
    const double compute = computation_of(experiment.points[i]);
    CHECK(compute > 1);
    CHECK(outcomes[i].times.step == Approx(compute).epsilon(1e-6));
    CHECK(outcomes[i].times.compute == Approx(compute).epsilon(1e-6));
    CHECK(outcomes[i].times.exposed < 1e-6 * compute);
    CHECK(outcomes[i].parts == 1);
  }
}

TEST_CASE("with infinite links and messages that start at once lancet chooses no parts") {
  const Files files;
  for (const double latency_us : {0.0, 5.0}) {
    files.folder.write("machine.json", test::declared_hardware({.network = 1e9, .latency_us = latency_us}));
    const Experiment experiment = files.read_with_both_gates();
    int seen = 0;
    for (const Point& point : experiment.points) {
      if (point.policy != "Lancet") continue;
      const auto outcome = simulate(experiment, point);
      REQUIRE(outcome.ok());
      INFO(point.describe() << ", " << latency_us << " us");
      CHECK(outcome->parts == 1);
      ++seen;
    }
    CHECK(seen == 4);
  }
}

TEST_CASE("padding costs the empty share of the capacity") {
  const Files files;
  files.folder.write("settings.json", R"({"models": {"small": {"config": ")" + files.config + R"("}},
    "policies": {"sequential": {"set": ["overlap.policy=sequential"]},
                 "padded": {"set": ["overlap.policy=sequential"], "padded": true}}})");
  const auto step = [&](const std::string& factor, const std::string& routing) {
    const std::string grid = R"("on": ")" + files.machine +
                             R"(", "models": ["small"], "gates": ["switch"], "ranks": [4],
      "policies": ["sequential", "padded"], "set": ["model.capacity_factor=)" +
                             factor + R"("], "routing": )" + routing;
    const auto experiment = read_experiment(files.experiment(grid), "", here);
    INFO((experiment.ok() ? "" : experiment.error().message));
    REQUIRE(experiment.ok());
    return simulated(*experiment);
  };
  const auto exact = step("1", "\"even\""), roomy = step("4", "\"even\""), uneven = step("4", "{\"imbalance\": 2}");
  CHECK(exact[1].times.step == exact[0].times.step);
  // Four times the bytes (the latency does not grow) and four times the experts.
  CHECK(roomy[0].times.all_to_all == Approx(exact[0].times.all_to_all));
  CHECK(roomy[1].times.all_to_all > 2 * roomy[0].times.all_to_all);
  CHECK(*roomy[1].experts_ms > 2 * *roomy[0].experts_ms);
  // Padded work does not depend on the spread of tokens; unpadded work waits for the fullest rank.
  CHECK(uneven[1].times.step == roomy[1].times.step);
  CHECK(uneven[0].times.step > roomy[0].times.step);
  CHECK(*uneven[0].experts_ms > 1.5 * *roomy[0].experts_ms);
  CHECK(uneven[0].times.step < uneven[1].times.step);
}

TEST_CASE("on a slow network policies overlap, and none is slower than sequential") {
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
  const auto record = test::json_in(to_line(experiment, experiment.points[0], *outcome, options.commit));
  CHECK(record["status"] == "out of memory");
  CHECK_FALSE(record.contains("step_ms"));
}

}  // namespace lancet
