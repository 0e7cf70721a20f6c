// Shares of the experts on unlike devices, against all shares of small models.
#include "lancet/placement/expert_shares.h"

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <functional>

namespace lancet::placement {
namespace {

config::Config experts_config(int experts, const std::vector<std::string>& more = {}) {
  std::vector<std::string> overrides{"model.experts_per_rank=" + std::to_string(experts)};
  overrides.insert(overrides.end(), more.begin(), more.end());
  auto config = config::parse(R"({"model": {"n_layer": 2, "n_head": 4, "n_embd": 256, "n_positions": 128,
      "vocab_size": 1000, "moe_layer_freq": 1, "router": "top_k", "num_experts_per_tok": 2}, "data": {"synthetic": true},
      "train": {"seq_len": 128, "micro_batch_size": 8}, "overlap": {"policy": "sequential"}})",
                              "test", overrides);
  if (!config.ok()) FAIL(config.error().message);
  return *config;
}

// By device: its speed relative to a V100's. memory_mb: of the last one.
Cluster devices_of(const std::vector<double>& speeds, double memory_mb = 16000) {
  std::string text = R"({"what": "a test", "devices": [)";
  for (std::size_t i = 0; i < speeds.size(); ++i)
    text += fmt::format(R"({}{{"name": "d{}", "hardware": "p3dn-v100:device.fp32_tflops={},device.vector_tflops={},)"
                        R"(device.memory_gb_per_s={},device.launch_us=1", "memory_mb": {}, "up_gbit_per_s": 90, )"
                        R"("down_gbit_per_s": 90, "latency_us": 5, "source": "a test"}})",
                        i > 0 ? ", " : "", i, 15.7 * speeds[i], 15.7 * speeds[i], 900 * speeds[i],
                        i + 1 == speeds.size() ? memory_mb : 16000);
  auto cluster = parse_cluster(text + "]}", "test");
  if (!cluster.ok()) FAIL(cluster.error().message);
  return *cluster;
}

void for_each_share(std::int64_t experts, std::size_t devices,
                    const std::function<void(const std::vector<std::int64_t>&)>& visit,
                    std::vector<std::int64_t> counts = {}) {
  if (counts.size() + 1 == devices) {
    counts.push_back(experts);
    return visit(counts);
  }
  for (std::int64_t here = 1; here + std::int64_t(devices - counts.size()) - 1 <= experts; ++here) {
    std::vector<std::int64_t> longer = counts;
    longer.push_back(here);
    for_each_share(experts - here, devices, visit, longer);
  }
}

}  // namespace

TEST_CASE("experts: the search finds the best of all shares of small models") {
  for (const auto& [speeds, experts] :
       {std::pair{std::vector<double>{0.2, 0.05}, 8}, {{0.1, 0.05, 0.2}, 7}, {{0.2, 0.05, 0.2, 0.05}, 10}}) {
    const config::Config config = experts_config(experts);
    const Cluster cluster = devices_of(speeds);
    const auto answer = place_experts(config, cluster, 1000);
    if (!answer.ok()) FAIL(answer.error().message);
    double least = 1e9;
    int all = 0;
    for_each_share(experts, speeds.size(), [&](const std::vector<std::int64_t>& counts) {
      const auto shares = plan_experts(config, cluster, counts);
      REQUIRE(shares.ok());
      least = std::min(least, shares->step_ms);
      ++all;
    });
    CHECK(answer->best.step_ms == Approx(least).epsilon(1e-9));
    CHECK(answer->best.step_ms < 0.95 * answer->even.step_ms);
    CHECK(answer->planned <= all);
  }
}

TEST_CASE("experts: equal devices have equal shares") {
  const auto answer = place_experts(experts_config(6), devices_of({0.1, 0.1, 0.1}));
  REQUIRE(answer.ok());
  CHECK(answer->best.counts == std::vector<std::int64_t>{2, 2, 2});
  CHECK(answer->best.step_ms == answer->even.step_ms);
}

TEST_CASE("experts: the smallest memory bounds the largest share") {
  const config::Config config = experts_config(8, {"model.n_embd=512"});
  const auto free = place_experts(config, devices_of({0.2, 0.05}));
  REQUIRE(free.ok());
  REQUIRE(free->best.counts[0] > 5);
  const auto five = plan_experts(config, devices_of({0.2, 0.05}), {5, 3});
  REQUIRE(five.ok());
  const auto bound = place_experts(config, devices_of({0.2, 0.05}, double(five->bytes) * 1e-6 + 0.5));
  if (!bound.ok()) FAIL(bound.error().message);
  CHECK(bound->best.counts == std::vector<std::int64_t>{5, 3});
  CHECK(bound->best.lacking == 0);
}

TEST_CASE("experts: what cannot be placed is one line") {
  const auto error_of = [](const config::Config& config, const Cluster& cluster) {
    const auto answer = place_experts(config, cluster);
    REQUIRE_FALSE(answer.ok());
    CHECK(answer.error().code == ExitCode::config);
    return answer.error().message;
  };
  CHECK(error_of(experts_config(4), devices_of({1})) == "devices: expected at least two, found one");
  CHECK(error_of(experts_config(2), devices_of({1, 1, 1})) ==
        "model: expected an expert for each of the 3 devices, found 2 experts in a layer");
  config::Config meshed = experts_config(4);
  meshed.mesh.expert = 2;
  CHECK(error_of(meshed, devices_of({1, 1})) ==
        "mesh: expected none, since --experts chooses it, with a rank on each device");
  CHECK(error_of(experts_config(4), devices_of({1, 1}, 10)).find("MB") != std::string::npos);
}

}  // namespace lancet::placement
