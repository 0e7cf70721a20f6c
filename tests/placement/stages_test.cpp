// Placement of a training step as pipeline stages, against all splits of small models.
#include "lancet/placement/stages.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>

#include "good.h"
#include "lancet/run/planned_step.h"
#include "temporary_folder.h"

namespace lancet::placement {
namespace {

config::Config step_config(int blocks, const std::vector<std::string>& more = {}) {
  std::vector<std::string> overrides{"model.n_layer=" + std::to_string(blocks)};
  overrides.insert(overrides.end(), more.begin(), more.end());
  auto config =
      lancet::test::good(config::parse(R"({"model": {"n_head": 4, "n_embd": 256, "n_positions": 64, "vocab_size": 1000,
      "moe_layer_freq": 0}, "data": {"synthetic": true},
      "train": {"seq_len": 64, "micro_batch_size": 4, "gradient_accumulation_steps": 4}})",
                                       "test", overrides));
  return *config;
}

// memory_mb, and the speed of products relative to a V100's, by device.
Cluster cluster_of(const std::vector<std::pair<double, double>>& devices, double gbit_per_s = 20) {
  std::string text = R"({"what": "a test", "devices": [)";
  for (std::size_t i = 0; i < devices.size(); ++i)
    text += fmt::format(R"({}{{"name": "d{}", "hardware": "p3dn-v100:device.fp32_tflops={},device.vector_tflops={},)"
                        R"(device.memory_gb_per_s={}", "memory_mb": {}, "up_gbit_per_s": {}, "down_gbit_per_s": {}, )"
                        R"("latency_us": 5, "source": "a test"}})",
                        i > 0 ? ", " : "", i, 15.7 * devices[i].second, 15.7 * devices[i].second,
                        900 * devices[i].second, devices[i].first, gbit_per_s, gbit_per_s);
  auto cluster = lancet::test::good(parse_cluster(text + "]}", "test"));
  return *cluster;
}

config::Config emulated(config::Config config) {
  config.device = config::Device::emulated;
  return config;
}

// Every order of some of the devices, with every split of the blocks.
void for_each_split(int devices, int blocks, const std::function<void(const StageSplit&)>& visit,
                    StageSplit split = {}) {
  const int left = blocks - [&] {
    int sum = 0;
    for (const int each : split.blocks) sum += each;
    return sum;
  }();
  if (!split.devices.empty() && left == 0) visit(split);
  for (int device = 0; device < devices; ++device) {
    if (std::ranges::count(split.devices, device) > 0) continue;
    for (int count = left == 0 && !split.devices.empty() && split.blocks.back() > 0 ? 0 : 1; count <= left; ++count) {
      StageSplit longer = split;
      longer.devices.push_back(device);
      longer.blocks.push_back(count);
      for_each_split(devices, blocks, visit, longer);
    }
  }
}

}  // namespace

TEST_CASE("stages: the search finds the best of all splits of small models") {
  struct Case {
    int blocks;
    std::vector<std::pair<double, double>> devices;
    double gbit_per_s;
    const char* schedule;
  };
  for (const Case& c : {Case{4, {{4000, 1}, {4000, 0.5}}, 20, "1f1b"},
                        {5, {{4000, 0.4}, {4000, 1}}, 20, "zero_bubble"},
                        {6, {{4000, 1}, {4000, 0.6}}, 1, "searched"},
                        {4, {{4000, 1}, {55, 0.5}, {4000, 0.7}}, 20, "1f1b"},
                        {5, {{60, 1}, {60, 1}, {60, 0.5}}, 20, "1f1b"}}) {
    INFO(c.blocks << " blocks, " << c.devices.size() << " devices, " << c.schedule);
    const config::Config config = step_config(c.blocks, {std::string("train.pipeline_schedule=") + c.schedule});
    const Cluster cluster = cluster_of(c.devices, c.gbit_per_s);
    const auto answer = lancet::test::good(place_stages(config, cluster));
    const config::Config on_devices = emulated(config);
    StagePlanner planner(on_devices, cluster);
    double best = 1e9;
    for_each_split(int(c.devices.size()), c.blocks, [&](const StageSplit& split) {
      const auto planned = planner.plan(split);
      if (planned.ok() && planned->fits()) best = std::min(best, planned->step_ms);
    });
    CHECK(answer->best.step_ms == Approx(best));
    CHECK(answer->best.fits());
    CHECK(answer->bound_ms <= answer->best.step_ms);
    CHECK(answer->bound_ms > 0.3 * answer->best.step_ms);
    if (answer->even.step_ms > 0 && answer->even.fits()) CHECK(answer->best.step_ms <= answer->even.step_ms);
    CHECK(answer->planned < planner.planned());
  }
}

TEST_CASE("stages: the bound of a single device is its step, but for what more micro batches add up") {
  for (const int micro_batches : {1, 4}) {
    const std::string accumulated = "train.gradient_accumulation_steps=" + std::to_string(micro_batches);
    const auto answer = lancet::test::good(place_stages(step_config(4, {accumulated}), cluster_of({{4000, 1}})));
    INFO(micro_batches << " micro batches");
    CHECK(answer->bound_ms <= answer->best.step_ms * (1 + 1e-9));
    CHECK(answer->bound_ms > 0.9 * answer->best.step_ms);
  }
}

TEST_CASE("stages: memory forces a split, and its settings plan the same step") {
  const config::Config config = step_config(6);
  const Cluster large = cluster_of({{4000, 1}, {4000, 0.1}}, 0.1);
  const auto alone = lancet::test::good(place_stages(config, large));
  CHECK(alone->best.split == StageSplit{{0}, {6}});  // links so slow that one device is best
  const Cluster small = cluster_of({{80, 1}, {80, 0.1}}, 0.1);
  const auto split = lancet::test::good(place_stages(config, small));
  CHECK(split->best.split.devices.size() == 2);
  CHECK(split->best.step_ms > alone->best.step_ms);
  for (const std::int64_t bytes : split->best.bytes) CHECK(bytes <= 80'000'000);
  const auto placed = lancet::test::good(config::parse(config::to_json(config), "test", split->best.settings()));
  const auto planned = lancet::test::good(run::plan_offline(*placed, {.ranks = 2}));
  CHECK(planned->stage_times.makespan == Approx(split->best.step_ms));
}

TEST_CASE("stages: a searched order keeps to the memory of each device, not of the largest") {
  const auto placed = [](const char* schedule, std::vector<std::pair<double, double>> devices) {
    const auto answer = lancet::test::good(place_stages(
        step_config(6, {"train.gradient_accumulation_steps=8", "model.moe_layer_freq=2", "model.num_local_experts=4",
                        "model.capacity_factor=1", std::string("train.pipeline_schedule=") + schedule}),
        cluster_of(devices)));
    CHECK(answer->best.fits());
    return answer->best;
  };
  const PlannedStages roomy = placed("1f1b", {{4000, 1}, {4000, 0.6}});
  REQUIRE(roomy.split.devices == std::vector{0, 1});
  const double second_mb = std::ceil(double(roomy.bytes[1]) * 1e-6);
  CHECK(placed("searched", {{4000, 1}, {4000, 0.6}}).bytes[1] > std::int64_t(second_mb * 1e6));
  CHECK(placed("searched", {{4000, 1}, {second_mb, 0.6}}).step_ms <= roomy.step_ms * (1 + 1e-9));
}

TEST_CASE("stages: what cannot be placed is said in one line") {
  const auto error = [](const config::Config& config, const Cluster& cluster) {
    const Error answer = lancet::test::refused(place_stages(config, cluster));
    CHECK(answer.code == ExitCode::config);
    return answer.message;
  };
  const Cluster cluster = cluster_of({{4000, 1}, {4000, 1}});
  CHECK(error(step_config(4, {"mesh.stage=2"}), cluster) ==
        "mesh: expected none, since --stages chooses the stages, each of one rank");
  CHECK(error(step_config(4, {"train.pipeline_schedule=interleaved"}), cluster)
            .starts_with("train.pipeline_schedule: expected 1f1b, zero_bubble or searched "));
  CHECK(error(step_config(4, {"overlap.policy=lancet"}), cluster) ==
        "overlap.policy: expected sequential for stages, found lancet");
  CHECK(error(step_config(4), cluster_of({{20, 1}, {20, 1}})).find(" MB") != std::string::npos);
}

TEST_CASE("stages: hardware that a cluster file names by its path is read from there") {
  const lancet::test::TemporaryFolder folder;
  // The name of a file that comes with the program, and another machine.
  std::ifstream slow(LANCET_SOURCE_DIR "/configs/hardware/tesla-p4.json");
  const std::string path = folder.write("p3dn-v100.json", std::string(std::istreambuf_iterator<char>(slow), {}));
  const auto step_on = [](const std::string& hardware) {
    const auto cluster =
        lancet::test::good(parse_cluster(R"({"what": "one device", "devices": [{"name": "a", "hardware": ")" +
                                             hardware + R"(", "memory_mb": 4000, "source": "a test"}]})",
                                         "test"));
    const auto answer = lancet::test::good(place_stages(step_config(4), *cluster));
    return answer->best;
  };
  const PlannedStages placed = step_on(path);
  CHECK(placed.step_ms == Approx(step_on("tesla-p4").step_ms));
  CHECK(placed.hardware.starts_with(path + ":"));
}

TEST_CASE("stages: a memory limit holds for the splits, and changes none that it has room for") {
  const Cluster cluster = cluster_of({{4000, 1}, {4000, 0.5}});
  const auto free = place_stages(step_config(4), cluster);
  const auto limited = place_stages(step_config(4, {"train.memory_limit_mb=4000"}), cluster);
  REQUIRE(free.ok());
  REQUIRE(limited.ok());
  CHECK(limited->best.split == free->best.split);
  CHECK(limited->best.step_ms == Approx(free->best.step_ms));
  CHECK(limited->bound_ms == Approx(free->bound_ms));
}

}  // namespace lancet::placement
