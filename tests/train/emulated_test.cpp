// Training steps on an emulated device: declared times, drawn routes, real messages.
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "declared_hardware.h"
#include "good.h"
#include "lancet/cost/hardware.h"
#include "lancet/run/metrics.h"
#include "routers.h"
#include "temporary_folder.h"
#include "train/support.h"

namespace lancet {
namespace {

config::Config emulated_config(const test::TemporaryFolder& folder,
                               const test::DeclaredMachine& machine = {.latency_us = 1000}) {
  config::Config config = test::small_config();
  config.device = config::Device::emulated;
  config.emulated.hardware = folder.write("declared.json", test::declared_hardware(machine));
  config.emulated.scale = 1;
  config.emulated.dilation = 2;
  config.train.seq_len = 16;
  return config;
}

// What a rank of a run saw.
struct Seen {
  std::vector<run::StepRecord> records;
  std::vector<std::vector<double>> expert_tokens;  // of the last step, by layer
  double declared_ms = 0;                          // of the compute stream
};

Seen run_emulated(const config::Config& config, int ranks, int steps, int hosts = 1) {
  Seen seen;
  test::good(comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = ranks / hosts}));
    for (int step = 0; step < steps; ++step) {
      LANCET_ASSIGN(const run::StepRecord record, trainer->step(step));
      if (world.rank() == 0) seen.records.push_back(record);
    }
    if (world.rank() > 0) return {};
    for (const run::LayerLoad& layer : trainer->last_layers())
      seen.expert_tokens.emplace_back(layer.expert_tokens.begin(), layer.expert_tokens.end());
    const std::string first_host = config.emulated.hardware.substr(0, config.emulated.hardware.find(';'));
    LANCET_ASSIGN(const cost::Hardware hardware, cost::read_hardware(first_host));
    const ir::Plan& plan = trainer->executor().plan();
    cost::Layout layout{ranks, 1};
    layout.mesh = config::mesh_of(config, ranks);
    LANCET_ASSIGN(const auto costs, cost::op_costs(cost::HardwareCosts(hardware, layout), plan.program));
    for (std::size_t i = 0; i < costs.size(); ++i)
      if (plan.program.instructions[i].stream == ir::Stream::compute) seen.declared_ms += costs[i].ms;
    return {};
  }));
  return seen;
}

std::string error_of(const config::Config& config, int ranks) {
  const Error status = test::refused(comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = ranks}));
    return {};
  }));
  CHECK(status.code == ExitCode::config);
  return status.message;
}

TEST_CASE("steps on an emulated device take at least the declared time, and have no loss") {
  const test::TemporaryFolder folder;
  const Seen alone = run_emulated(emulated_config(folder), 1, 2);
  for (const run::StepRecord& record : alone.records) {
    // Sleeping can only take too long. How much is measured by runs, not here.
    CHECK(record.step_ms >= alone.declared_ms);
    CHECK(record.compute_ms <= record.step_ms);
    CHECK(std::isnan(record.loss));
    CHECK(std::isnan(record.grad_norm));
    CHECK(record.late_pct == 0);  // without messages none is late
  }
  CHECK(alone.declared_ms > 1);
}

TEST_CASE("ranks that emulate predict their steps, and spread tokens as they are told to") {
  const test::TemporaryFolder folder;
  config::Config config = emulated_config(folder);
  config.model.capacity_factor = 1;
  const Seen even = run_emulated(config, 2, 2);
  CHECK(even.expert_tokens == std::vector<std::vector<double>>(2, {64, 64, 64, 64}));
  CHECK(even.records[1].drop_pct == 0);
  REQUIRE(even.records[1].predicted_ms);
  CHECK(*even.records[1].predicted_ms > even.declared_ms);
  CHECK(even.records[1].step_ms >= even.declared_ms);
  CHECK(even.records[1].a2a_ms > 0);
  REQUIRE(even.records[1].late_pct);
  CHECK(*even.records[1].late_pct > 0);  // a sleep never ends on time to the nanosecond

  config.emulated.routing = "zipf:1.5";
  const Seen uneven = run_emulated(config, 2, 2);
  CHECK(uneven.expert_tokens != even.expert_tokens);
  CHECK(*uneven.records[1].drop_pct > 10);
  config.overlap.parts = 2;
  for (const char* policy : {"tutel", "fastermoe", "flowmoe", "lancet_paper", "lancet"}) {
    INFO(policy);
    config.overlap.policy = policy;
    const Seen parts = run_emulated(config, 2, 2);
    CHECK(parts.expert_tokens == uneven.expert_tokens);
    CHECK(*parts.records[1].drop_pct == *uneven.records[1].drop_pct);
  }
  CHECK(uneven.records[0].drop_pct != uneven.records[1].drop_pct);  // each step draws anew
}

TEST_CASE("an emulated device runs the further rounds of dropless layers that its counts ask for, under any policy") {
  const test::TemporaryFolder folder;
  config::Config config = emulated_config(folder);
  config.model.capacity_factor.reset();
  config.model.dropless_imbalance = 1;
  const Seen even = run_emulated(config, 2, 1);
  CHECK(even.records[0].rounds == 1);
  CHECK(even.records[0].drop_pct == 0);

  // The fullest expert has 2.5 times the mean: three rounds, or four where a rank draws more. Each step draws loads
  // of its own.
  config.emulated.routing =
      folder.write("trace.jsonl", R"({"layer_expert_tokens": [[160, 96, 0, 0], [64, 64, 96, 32]]})");
  const Seen uneven = run_emulated(config, 2, 2);
  for (const run::StepRecord& record : uneven.records) {
    CHECK((record.rounds == 3 || record.rounds == 4));
    CHECK(record.drop_pct == 0);
  }
  for (const std::vector<double>& layer : uneven.expert_tokens)
    CHECK(std::accumulate(layer.begin(), layer.end(), 0.0) == 256);
  CHECK(*uneven.records[1].predicted_ms > 1.3 * *even.records[0].predicted_ms);
  CHECK(uneven.records[1].step_ms > 0.85 * *uneven.records[1].predicted_ms);  // a sleep can only take too long
  config.overlap.parts = 2;
  for (const char* policy : {"tutel", "flowmoe", "lancet_paper", "lancet"}) {
    INFO(policy);
    config.overlap.policy = policy;
    const Seen parts = run_emulated(config, 2, 2);
    CHECK(parts.expert_tokens == uneven.expert_tokens);
    CHECK(parts.records[1].rounds == uneven.records[1].rounds);
  }
}

TEST_CASE("an emulated device makes the choices of every router, under any policy") {
  const auto route = GENERATE(from_range(test::routes));
  INFO(name(route.router));
  const test::TemporaryFolder folder;
  config::Config config = emulated_config(folder);
  route.set(config.model);
  config.model.router_bias_update_rate = 0;  // scores that are drawn have no load to balance
  const Seen whole = run_emulated(config, 2, 2);
  CHECK(whole.records[1].drop_pct == 0);
  for (const std::vector<double>& layer : whole.expert_tokens) {
    const double all = std::accumulate(layer.begin(), layer.end(), 0.0);
    if (route.router == config::Router::gshard)
      CHECK((all > 256 && all < 512));  // some second choices are skipped
    else
      CHECK(all == 256 * (route.drops() ? double(route.experts_per_tok) : *config.model.capacity_factor));
    if (route.router == config::Router::random) CHECK(layer == std::vector<double>(4, 64));
  }
  config.overlap.parts = 2;
  for (const char* policy : {"lancet_paper", "lancet"}) {
    config.overlap.policy = policy;
    CHECK(run_emulated(config, 2, 2).expert_tokens == whole.expert_tokens);
  }
}

TEST_CASE("an emulated device runs ZeRO-1 and sends gradients in bf16") {
  const test::TemporaryFolder folder;
  config::Config config = emulated_config(folder);
  const Seen whole = run_emulated(config, 2, 1);
  config.train.zero = 1;
  const Seen shards = run_emulated(config, 2, 2);
  config.train.reduce_dtype = DType::bf16;
  const Seen rounded = run_emulated(config, 2, 2);
  for (const Seen* seen : {&shards, &rounded})
    for (const run::StepRecord& record : seen->records) {
      CHECK(record.step_ms >= seen->declared_ms);
      CHECK(record.allreduce_ms > 0);
    }
  // A reduce-scatter and an all-gather of fp32 weights are an all-reduce; a rank updates half of the dense weights.
  CHECK(*shards.records[0].predicted_ms < 1.1 * *whole.records[0].predicted_ms);
  CHECK(*rounded.records[0].predicted_ms < *shards.records[0].predicted_ms);
  CHECK(shards.declared_ms < whole.declared_ms);
}

TEST_CASE("an emulated device draws the same routes on ranks that have the same tokens") {
  const test::TemporaryFolder folder;
  config::Config config = emulated_config(folder);
  config.emulated.routing = "zipf:1";
  config.mesh.expert = 2;
  config.mesh.tensor = 2;
  config.train.sequence_parallel = GENERATE(false, true);
  INFO("sequences split " << config.train.sequence_parallel);
  std::vector<std::vector<double>> tokens(4);  // of the experts, by rank; ranks 0 and 1 differ along tensor
  test::good(comm::run_inproc(4, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = 2}));
    LANCET_TRY(trainer->step(0));
    for (const run::LayerLoad& layer : trainer->last_layers())
      std::ranges::copy(layer.expert_tokens, std::back_inserter(tokens[std::size_t(world.rank())]));
    return {};
  }));
  REQUIRE_FALSE(tokens[0].empty());
  for (const std::vector<double>& of_rank : tokens) CHECK(of_rank == tokens[0]);
}

TEST_CASE("emulated hosts of unlike hardware: each takes its own time, and the plan is made for the slowest") {
  const test::TemporaryFolder folder;
  config::Config config = emulated_config(folder);
  const std::string slow = config.emulated.hardware;
  const std::string fast = folder.write("fast.json", test::declared_hardware({.latency_us = 1000, .tflops = 0.08}));
  const auto of_hosts = [&](const std::string& hardware) {
    config.emulated.hardware = hardware;
    return run_emulated(config, 2, 1, 2);
  };
  const Seen all_slow = of_hosts(slow), all_fast = of_hosts(fast), unlike = of_hosts(fast + ";" + slow);
  CHECK(*all_fast.records[0].predicted_ms < *all_slow.records[0].predicted_ms);
  CHECK(*unlike.records[0].predicted_ms == *all_slow.records[0].predicted_ms);
  CHECK(unlike.declared_ms == all_fast.declared_ms);  // rank 0's
  CHECK(unlike.records[0].step_ms >= all_slow.declared_ms);
  config.emulated.hardware = fast + ";" + fast + ";" + slow;
  CHECK(error_of(config, 2).ends_with("emulated.hardware: expected one name, or one for each of 1 hosts, found 3"));
}

TEST_CASE("emulated pipeline stages draw the routes of one device, and take at least the time of the slowest stage") {
  const test::TemporaryFolder folder;
  config::Config config = emulated_config(folder);
  config.emulated.routing = "zipf:1";
  config.emulated.dilation = 4;
  config.train.gradient_accumulation_steps = 4;
  config.train.micro_batch_size = 2;
  const Seen whole = run_emulated(config, 1, 2);
  REQUIRE(whole.expert_tokens.size() == 2);
  struct Case {
    config::PipelineSchedule schedule;
    std::vector<std::int64_t> blocks;
  };
  for (const auto& [schedule, blocks] : {Case{config::PipelineSchedule::one_forward_one_backward, {}},
                                         {config::PipelineSchedule::zero_bubble, {3, 1}},
                                         {config::PipelineSchedule::searched, {1, 3}},
                                         {config::PipelineSchedule::one_forward_one_backward, {2, 1, 1}}}) {
    INFO(config::name(schedule) << ", stages of given blocks: " << blocks.size());
    config.train.pipeline_schedule = schedule;
    config.mesh.stage_blocks = blocks;
    config.mesh.stage = blocks.empty() ? 2 : std::ssize(blocks);
    const int stages = int(config.mesh.stage);
    const Seen seen = run_emulated(config, stages, 2, stages);
    CHECK(seen.expert_tokens == whole.expert_tokens);
    CHECK(*seen.records[1].drop_pct == *whole.records[1].drop_pct);
    CHECK(*seen.records[1].predicted_ms > seen.declared_ms);
    CHECK(seen.records[1].step_ms >= seen.declared_ms);
  }
  config.mesh.stage = 2;
  config.mesh.stage_blocks = {3, 1};
  config.mesh.data = 2;  // gradients are summed within a stage
  config.mesh.expert = 1;
  config.train.micro_batch_size = 1;
  config.model.router_group_size = 1;
  config.train.pipeline_schedule = config::PipelineSchedule::zero_bubble;
  CHECK(run_emulated(config, 4, 2, 2).expert_tokens.size() == 2);
}

TEST_CASE("an emulated device that this machine or the config cannot stand for is refused") {
  const test::TemporaryFolder folder;
  config::Config config = emulated_config(folder);
  const std::string file = config.emulated.hardware;
  config.mesh.expert = 3;
  CHECK(error_of(config, 3).find("mesh.expert: expected a divisor of the 4 experts") != std::string::npos);
  config.mesh = {};
  config.model.num_local_experts = 6;
  CHECK(error_of(config, 3).ends_with(
      "emulated.hardware: expected at most 2 ranks on a host, the devices of a node of declared, found 3"));
  config.model.num_local_experts = 4;
  config.emulated.scale = 1000;
  CHECK(error_of(config, 2).find("emulated.scale: expected at most ") != std::string::npos);
  config.emulated.scale = 1;
  config.emulated.routing = "zipf:x";
  CHECK(error_of(config, 2).find("emulated.routing: expected even, zipf:S") != std::string::npos);
  config.emulated.routing = "even";
  config.emulated.hardware = "";
  CHECK(error_of(config, 2).find("emulated.hardware: expected a hardware file for device \"emulated\", found none") !=
        std::string::npos);
  config.emulated.hardware =
      folder.write("small.json", test::declared_hardware({.latency_us = 1000, .memory_gib = 1e-4}));
  CHECK(error_of(config, 2).find("MB of free memory a rank on small (") != std::string::npos);
  // Messages that need no time on the declared network.
  config.emulated.hardware = folder.write("fast.json", test::declared_hardware({.network = 1e6, .latency_us = 1e-3}));
  config.emulated.dilation = 1;
  CHECK(error_of(config, 2).find("emulated.dilation: expected at least ") != std::string::npos);
}

}  // namespace
}  // namespace lancet
