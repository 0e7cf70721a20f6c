// Runs that plan again when the load of the experts leaves the planned one (overlap.replan).
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <map>

#include "declared_costs.h"
#include "declared_hardware.h"
#include "host_accelerator.h"
#include "lancet/base/files.h"
#include "lancet/cost/hardware.h"
#include "text.h"
#include "train/after_step.h"
#include "train/runs.h"

namespace lancet {
namespace {

using namespace test;

// Uneven from the first step on: the routers are as they begin, and no loss evens them out.
config::Config uneven_config(const std::string& run, std::int64_t replan) {
  config::Config config = config_in(run);
  config.model.router_aux_loss_coef = 0;
  config.model.capacity_factor = 4;
  config.overlap.policy = "lancet";
  config.overlap.max_parts = 2;
  config.overlap.replan = replan;
  return config;
}

// The steps whose records say that they planned again.
std::vector<std::int64_t> replanned_after(const std::string& run) {
  std::vector<std::int64_t> steps;
  for (const auto& record : records_of(run))
    if (!record["replan"].is_null()) steps.push_back(record["step"]);
  return steps;
}

// Costs at which another plan is faster under the uneven load. The network's speed decides that; which one it is
// depends on the policies, so several are tried.
DeclaredCosts replanning_costs(int accumulation = 1) {
  static std::map<int, double> found;  // by accumulation
  DeclaredCosts costs;
  for (const double speed : {14., 5., 8., 11., 20., 30., 45.}) {
    if (found.contains(accumulation)) break;
    const TemporaryFolder folder;
    costs.network_mb_per_s = speed;
    const train::TrainerOptions options{.costs = &costs};
    config::Config config = uneven_config(folder / "run", 2);
    config.train.gradient_accumulation_steps = accumulation;
    REQUIRE(test::train_run(config, 2, options).code == ExitCode::done);
    const auto steps = replanned_after(folder / "run");
    if (steps.empty() || steps.front() != 2) continue;
    const auto replan = records_of(folder / "run")[1]["replan"];
    if (replan["to_ms"] < replan["from_ms"]) found[accumulation] = speed;
  }
  if (!found.contains(accumulation)) FAIL("no network makes another plan faster");
  costs.network_mb_per_s = found[accumulation];
  return costs;
}

}  // namespace

TEST_CASE("the counts of a step are the sums of its micro batches' choices, kept or not") {
  train::StepTally tally(2, 4);
  const std::vector<float> first{10, 30, 30, 10, 10, 25, 25, 10}, second{40, 20, 20, 0, 25, 20, 20, 0};
  const float aux[] = {0, 0};
  train::LayerOutputs layers;
  layers.aux = {aux, aux};
  layers.load = {first, second};
  tally.add(layers);
  tally.add(layers);
  CHECK(tally.chosen() == std::vector<std::vector<double>>{{20, 60, 60, 20}, {80, 40, 40, 0}});
}

TEST_CASE("a run plans again once the load leaves the planned one, and trains as without") {
  const TemporaryFolder folder;
  const int accumulation = GENERATE(1, 2);
  const DeclaredCosts costs = replanning_costs(accumulation);
  const train::TrainerOptions options{.costs = &costs};
  config::Config config = uneven_config(folder / "kept", 0);
  config.train.gradient_accumulation_steps = accumulation;
  REQUIRE(train_run(config, 2, options).code == ExitCode::done);
  CHECK(replanned_after(folder / "kept").empty());

  config.log.run_dir = folder / "replanned";
  config.overlap.replan = 2;
  config.log.trace = 2;  // the step whose plan is replaced after it
  REQUIRE(train_run(config, 2, options).code == ExitCode::done);
  double longest = 0;
  const nlohmann::json trace = test::json_file(folder / "replanned/trace.json");
  for (const auto& event : trace["traceEvents"])
    if (event["pid"] < 2) longest = std::max(longest, event.value("dur", 0.0));  // of the ranks, not predicted
  CHECK(longest > 0);
  const auto steps = replanned_after(folder / "replanned");
  REQUIRE_FALSE(steps.empty());
  CHECK(steps.front() == 2);
  const auto records = records_of(folder / "replanned");
  const double planned = records[1]["predicted_ms"];
  CHECK(std::abs(records[1]["replan"]["from_ms"].get<double>() / planned - 1) > 0.016);
  CHECK(records[1]["replan"]["to_ms"] < records[1]["replan"]["from_ms"]);
  double running = 0;  // predicted, of the plan that replaced another one last
  for (const std::int64_t step : steps) {
    INFO("after step " << step);
    const auto& replan = records[std::size_t(step - 1)]["replan"];
    const double from = replan["from_ms"], to = replan["to_ms"];
    CHECK(replan["planning_ms"] > 0);
    if (to >= from) continue;  // the old plan stays
    running = to;
    if (std::size_t(step) < records.size())
      CHECK(records[std::size_t(step)]["predicted_ms"].get<double>() == Approx(to).epsilon(2e-3));
  }
  CHECK(running > 0);
  const auto plan = ir::parse_plan(*read_file(folder / "replanned/plan.ir", "a plan"));
  REQUIRE(plan.ok());
  CHECK(plan->header.real("predicted_ms") == Approx(running).epsilon(2e-3));
  const auto expected = losses(folder / "kept"), found = losses(folder / "replanned");
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i] == Approx(expected[i]).epsilon(1e-6));
}

// Bit for bit, as the kernels are the CPU's.
TEST_CASE("a run on device streams plans again as on the CPU") {
  const TemporaryFolder folder;
  const int accumulation = GENERATE(1, 2);
  const DeclaredCosts costs = replanning_costs(accumulation);
  config::Config config = uneven_config(folder / "cpu", 2);
  config.train.gradient_accumulation_steps = accumulation;
  REQUIRE(train_run(config, 2, {.costs = &costs}).code == ExitCode::done);
  config.log.run_dir = folder / "device";
  good(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    HostAccelerator accelerator({.pause_us = 20, .seed = std::uint64_t(world.rank())});
    return train::train(config, world, {.local_ranks = 2, .costs = &costs, .accelerator = &accelerator});
  }));
  const auto steps = replanned_after(folder / "device");
  CHECK(steps == replanned_after(folder / "cpu"));
  REQUIRE_FALSE(steps.empty());
  const auto replan = records_of(folder / "device")[std::size_t(steps.front() - 1)]["replan"];
  CHECK(replan["to_ms"] < replan["from_ms"]);  // another plan runs from there on
  CHECK(losses(folder / "device") == losses(folder / "cpu"));
  CHECK(manifest_in(folder / "device", 6).files == manifest_in(folder / "cpu", 6).files);
  CHECK(manifest_in(folder / "device", 6).plan == manifest_in(folder / "cpu", 6).plan);
}

// Both stages have an MoE layer; a step of 72 micro batches runs its plans twice, once for each 36.
TEST_CASE("pipeline stages plan again, and train as without") {
  const TemporaryFolder folder;
  config::Config config = uneven_config(folder / "kept", 0);
  config.mesh.stage = 2;
  config.mesh.expert = 2;
  config.overlap.memory_factor = 3;
  config.train.steps = 4;
  const auto& [accumulation, stop] = GENERATE(table<int, int>({{4, 1}, {4, 3}, {72, 3}}));
  config.train.gradient_accumulation_steps = accumulation;
  DeclaredCosts costs;
  costs.network_mb_per_s = 8;
  const train::TrainerOptions options{.costs = &costs};
  REQUIRE(train_run(config, 4, options).code == ExitCode::done);
  config.log.run_dir = folder / "replanned";
  config.overlap.replan = 2;
  REQUIRE(train_run(config, 4, options).code == ExitCode::done);
  REQUIRE(replanned_after(folder / "replanned") == std::vector<std::int64_t>{2});
  const auto records = records_of(folder / "replanned");
  const double from = records[1]["replan"]["from_ms"], to = records[1]["replan"]["to_ms"];
  CHECK(from > 1.016 * records[1]["predicted_ms"].get<double>());
  CHECK(to < from);
  CHECK(records[2]["predicted_ms"].get<double>() == Approx(to).epsilon(2e-3));
  const auto expected = losses(folder / "kept"), found = losses(folder / "replanned");
  for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i] == Approx(expected[i]).epsilon(1e-6));
  config.log.run_dir = folder / "stopped";
  stop_after(config, stop, 4, options);
  REQUIRE(train_run(config, 4, options).code == ExitCode::done);
  CHECK(losses(folder / "stopped") == found);
  CHECK(manifest_in(folder / "stopped", 4).load == manifest_in(folder / "replanned", 4).load);
}

TEST_CASE("a run that plans again resumes bit for bit, in the middle between two comparisons, too") {
  const TemporaryFolder folder;
  const DeclaredCosts costs = replanning_costs();
  const train::TrainerOptions options{.costs = &costs};
  config::Config config = uneven_config(folder / "whole", 2);
  REQUIRE(train_run(config, 2, options).code == ExitCode::done);
  REQUIRE(replanned_after(folder / "whole").front() == 2);
  config.log.run_dir = folder / "stopped";
  const int stop = GENERATE(1, 2, 3);
  stop_after(config, stop, 2, options);
  const checkpoint::LoadHistory load = manifest_in(folder / "stopped", stop).load;
  CHECK(load.steps == stop % 2);
  CHECK(load.recorded.size() == std::size_t(stop % 2));
  REQUIRE(load.planned.empty() == (stop < 2));
  if (!load.planned.empty()) CHECK(load.planned.size() == 2);
  CHECK(load.compared.empty() == (stop < 2));
  REQUIRE(train_run(config, 2, options).code == ExitCode::done);
  CHECK(losses(folder / "stopped") == losses(folder / "whole"));
  CHECK(replanned_after(folder / "stopped") == replanned_after(folder / "whole"));
  const auto one = manifest_in(folder / "whole", 6), other = manifest_in(folder / "stopped", 6);
  CHECK(one.files == other.files);
  CHECK(one.plan == other.plan);
  CHECK(one.load == other.load);
}

TEST_CASE("nothing is planned again for one rank, under sequential, and while the load stays") {
  const TemporaryFolder folder;
  const DeclaredCosts costs;
  config::Config config = uneven_config(folder / "run", 2);
  int ranks = 2;
  SECTION("one rank") { ranks = 1; }
  SECTION("sequential") { config.overlap.policy = "sequential"; }
  SECTION("all-to-alls and experts take no time") {
    config.overlap.replan = 2;
    config.model.moe_layer_freq = 0;
    config.model.num_local_experts.reset();
  }
  REQUIRE(train_run(config, ranks, {.costs = &costs}).code == ExitCode::done);
  CHECK(replanned_after(folder / "run").empty());
}

TEST_CASE("the recorded counts of a run are the routing of an emulated one, which plans again when they shift") {
  const TemporaryFolder folder;
  config::Config config = config_in(folder / "trained");
  config.train.steps = 4;
  REQUIRE(train_run(config, 2).code == ExitCode::done);
  const auto trained = records_of(folder / "trained");

  config.device = config::Device::emulated;
  config.emulated.hardware = folder.write("declared.json", declared_hardware({.network = 0.02, .latency_us = 1000}));
  config.emulated.scale = 1;
  config.emulated.dilation = 2;
  config.emulated.routing = "trace:" + (folder / "trained/metrics.jsonl");
  config.log.run_dir = folder / "emulated";
  REQUIRE(train_run(config, 2).code == ExitCode::done);
  const auto emulated = records_of(folder / "emulated");
  REQUIRE(emulated.size() == 4);
  for (std::size_t step = 0; step < 4; ++step)
    for (std::size_t layer = 0; layer < 2; ++layer) {
      const std::vector<double> from = trained[step]["layer_expert_tokens"][layer],
                                to = emulated[step]["layer_expert_tokens"][layer];
      const double tokens = std::accumulate(from.begin(), from.end(), 0.0);
      CHECK(std::accumulate(to.begin(), to.end(), 0.0) == tokens);
      // Each token is drawn for itself: binomial, so within four standard deviations.
      for (std::size_t e = 0; e < from.size(); ++e)
        CHECK(std::abs(to[e] - from[e]) <= 4 * std::sqrt(from[e] * (1 - from[e] / tokens)));
    }

  std::string shifts;  // even for two steps, then most tokens for the first rank
  for (const char* counts : {"[32, 32, 32, 32]", "[32, 32, 32, 32]", "[64, 60, 4, 0]", "[64, 60, 4, 0]"})
    shifts += fmt::format("{{\"layer_expert_tokens\": [{0}, {0}]}}\n", counts);
  config.emulated.routing = "trace:" + folder.write("shifts.jsonl", shifts);
  config.overlap = {.policy = "lancet", .replan = 2};
  config.train.steps = 5;
  config.log.run_dir = folder / "shifts";
  REQUIRE(train_run(config, 2).code == ExitCode::done);
  CHECK(replanned_after(folder / "shifts") == std::vector<std::int64_t>{2, 4});
  const auto records = records_of(folder / "shifts");
  CHECK(records[1]["replan"]["from_ms"] < records[1]["predicted_ms"]);  // the plan was made for the mean of the trace
  CHECK(records[3]["replan"]["from_ms"] > records[3]["predicted_ms"]);
}

}  // namespace lancet
