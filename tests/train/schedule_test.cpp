#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "doubles/inproc.h"
#include "lancet/comm/collect.h"
#include "lancet/run/metrics.h"
#include "lancet/train/trainer.h"
#include "log_capture.h"
#include "temporary_folder.h"
#include "text.h"
#include "train/after_step.h"
#include "train/support.h"

namespace lancet::train {
namespace {

config::Train rates_of(config::LrSchedule kind) {
  config::Train train;
  train.steps = 101;
  train.lr = 1;
  train.min_lr = 0.1;
  train.lr_warmup_steps = 10;
  train.lr_decay_steps = 21;
  train.lr_schedule = kind;
  return train;
}

}  // namespace

TEST_CASE("learning rates") {
  using enum config::LrSchedule;
  for (auto kind : {constant, linear, cosine, wsd}) {
    const auto train = rates_of(kind);
    CHECK(learning_rate(train, 0) == Approx(0.1));  // warm-up: a tenth of lr
    CHECK(learning_rate(train, 9) == Approx(1));
  }
  CHECK(learning_rate(rates_of(constant), 100) == 1);
  CHECK(learning_rate(rates_of(linear), 55) == Approx(0.55));
  CHECK(learning_rate(rates_of(linear), 100) == Approx(0.1));
  CHECK(learning_rate(rates_of(cosine), 55) == Approx(0.55));
  CHECK(learning_rate(rates_of(cosine), 32) > learning_rate(rates_of(linear), 32));
  CHECK(learning_rate(rates_of(cosine), 100) == Approx(0.1));
  CHECK(learning_rate(rates_of(wsd), 80) == 1);
  CHECK(learning_rate(rates_of(wsd), 90) == Approx(0.55));
  CHECK(learning_rate(rates_of(wsd), 100) == Approx(0.1));
}

TEST_CASE("learning rates of the first and the last step of warm-up and decay") {
  using enum config::LrSchedule;
  const auto rates = [](config::LrSchedule kind, int steps, int warmup, int decay) {
    auto train = rates_of(kind);
    train.steps = steps;
    train.lr_warmup_steps = warmup;
    train.lr_decay_steps = decay;
    std::vector<double> all;
    for (int step = 0; step < steps; ++step) all.push_back(learning_rate(train, step));
    return all;
  };
  const auto are = [](const std::vector<double>& expected) { return Catch::Matchers::Approx(expected).margin(1e-12); };
  CHECK_THAT(rates(wsd, 7, 2, 3), are({0.5, 1, 1, 1, 1, 0.55, 0.1}));
  CHECK_THAT(rates(wsd, 3, 0, 2), are({1, 1, 0.1}));
  CHECK_THAT(rates(wsd, 3, 0, 1), are({1, 1, 1}));
  CHECK_THAT(rates(wsd, 4, 2, 3), are({0.5, 1, 1, 0.1}));  // the warm-up leaves the decay two steps
  CHECK_THAT(rates(linear, 6, 3, 0), are({1. / 3, 2. / 3, 1, 1, 0.55, 0.1}));
  CHECK_THAT(rates(linear, 3, 0, 0), are({1, 0.55, 0.1}));
  CHECK_THAT(rates(cosine, 7, 2, 0),
             are({0.5, 1, 1, 0.1 + 0.45 * (1 + std::sqrt(0.5)), 0.55, 0.1 + 0.45 * (1 - std::sqrt(0.5)), 0.1}));
  CHECK_THAT(rates(cosine, 2, 1, 0), are({1, 1}));
  CHECK_THAT(rates(cosine, 1, 0, 0), are({1}));
}

TEST_CASE("a record is one JSON object with every field, null if unknown") {
  run::StepRecord record;
  record.step = 7;
  record.loss = 1.25;
  record.drop_pct = 2.5;
  const auto json = test::json_in(run::to_json(record));
  for (const char* key : {"step", "loss", "aux_loss", "grad_norm", "lr", "step_ms", "tokens_per_s", "mfu", "compute_ms",
                          "a2a_ms", "allreduce_ms", "communication_ms", "exposed_ms", "hidden_pct", "predicted_ms",
                          "load_max_over_mean", "drop_pct"})
    CHECK(json.contains(key));
  for (const char* key :
       {"dead_experts", "router_entropy", "layer_load_max_over_mean", "layer_drop_pct", "layer_dead_experts",
        "layer_router_entropy", "layer_expert_tokens", "save_ms", "skipped_steps", "late_pct", "replan", "rounds",
        "experts_per_token", "z_loss", "bias_spread", "layer_experts_per_token", "layer_z_loss", "layer_bias_spread"})
    CHECK(json.contains(key));
  CHECK(json.size() == 35);
  CHECK(json["z_loss"].is_null());
  CHECK(json["step"] == 7);
  CHECK(json["loss"] == 1.25);
  CHECK(json["drop_pct"] == 2.5);
  CHECK(json["predicted_ms"].is_null());
}

TEST_CASE("the step line") {
  run::StepRecord record;
  record.step = 12;
  record.loss = 3.5;
  record.grad_norm = 0.25;
  record.lr = 1e-3;
  record.step_ms = 100;
  record.tokens_per_s = 2000;
  record.mfu = 41.0;
  record.hidden_pct = 75;
  record.exposed_ms = 1.5;
  record.load_max_over_mean = 1.2;
  record.drop_pct = 0.5;
  CHECK(run::step_line(record, 400, 3723) ==
        "step  12/400 | loss 3.5000 | norm 0.25 | 100 ms (2 exposed) | 2000 tok/s | MFU 41% | drop 0.5% | ETA 1h 02m");
  record.predicted_ms = 96.4;
  CHECK(test::json_in(run::to_json(record))["predicted_ms"] == 96.4);
  record.skipped = true;
  record.skipped_steps = 2;
  record.loss = NAN;
  CHECK(run::step_line(record, 400, {}) ==
        "step  12/400 | loss nan | norm 0.25 | 100 ms (2 exposed) | SKIPPED (2 so far) | drop 0.5% | ETA n/a");
}

TEST_CASE("the step line of a large run fits 120 columns") {
  run::StepRecord record;
  record.step = 10000;
  record.loss = 10.8249;
  record.grad_norm = 12.345;
  record.lr = 2.5e-4;
  record.step_ms = 1234.5;
  record.predicted_ms = 1200;
  record.tokens_per_s = 123456;
  record.mfu = 61.23;
  record.hidden_pct = 10;
  record.exposed_ms = 1030.25;
  record.load_max_over_mean = 12.5;
  record.drop_pct = 12.5;
  record.dead_experts = 17;
  record.router_entropy = 1.234;
  record.save_ms = 1234;
  CHECK(run::step_line(record, 20000, 3723).size() <= 120);
}

TEST_CASE("ranks agree on the first error") {
  const Status result = comm::run_inproc(3, [](comm::Communicator& world) -> Status {
    const Status mine = world.rank() == 1 ? Status(data_error("no such file")) : Status();
    const Status agreed = comm::agree(world, mine);
    CHECK_FALSE(agreed.ok());
    CHECK(agreed.error().agreed);
    CHECK(agreed.error().code == ExitCode::data);
    CHECK(agreed.error().message == "rank 1: no such file");
    const auto text = broadcast_text(world, world.rank() == 2 ? "a text" : "", 2);
    CHECK(*text == "a text");
    return comm::agree(world, {});
  });
  CHECK(result.ok());
}

}  // namespace lancet::train

namespace lancet {

// Settings without effect are logged if a user may expect an effect.

TEST_CASE("master_weights=false in fp32 changes nothing, and the log says so once") {
  const auto losses = [](bool masters, DType dtype, int notes) {
    const test::TemporaryFolder folder;
    auto config = test::small_config();
    config.train.steps = 2;
    config.train.dtype = dtype;
    config.train.master_weights = masters;
    config.log.run_dir = folder / "run";
    const test::LogCapture log;
    const auto world = comm::make_self();
    REQUIRE(train::train(config, *world, {.local_ranks = 1}).ok());
    CHECK(log.count("train.master_weights changes nothing in fp32") == notes);
    std::vector<std::string> losses;
    std::istringstream lines(log.text());
    for (std::string line; std::getline(lines, line);)
      if (const auto at = line.find("| loss "); at != line.npos) losses.push_back(line.substr(at, 15));
    return losses;
  };
  const auto expected = losses(true, DType::f32, 0);
  CHECK(expected.size() == 2);
  CHECK(losses(false, DType::f32, 1) == expected);
  losses(false, DType::bf16, 0);
}

TEST_CASE("settings of stages, tensor parallelism and parts that change nothing are said once") {
  const test::TemporaryFolder folder;
  auto config = test::small_config();
  config.train.steps = 1;
  config.log.run_dir = folder / "run";
  config.overlap.policy = "sequential";
  const auto notes = [&](const char* text) {
    std::filesystem::remove_all(config.log.run_dir);
    const test::LogCapture log;
    const auto world = comm::make_self();
    REQUIRE(train::train(config, *world, {.local_ranks = 1}).ok());
    CHECK(log.count("changes nothing") == log.count(text));
    return log.count(text);
  };
  CHECK(notes("changes nothing") == 0);
  config.train.pipeline_schedule = config::PipelineSchedule::zero_bubble;
  CHECK(notes("train.pipeline_schedule changes nothing without stages (mesh.stage)") == 1);
  config.train.pipeline_schedule = {};
  config.train.sequence_parallel = true;
  CHECK(notes("train.sequence_parallel changes nothing without tensor parallelism (mesh.tensor)") == 1);
  config.train.sequence_parallel = false;
  config.overlap.parts = 2;
  CHECK(notes("overlap.parts changes nothing under overlap.policy \"sequential\"") == 1);
  config.overlap.parts = 0;
  config.overlap.replan = 2;
  CHECK(notes("overlap.replan changes nothing on one rank") == 1);
  config.overlap.replan = 0;
  config.emulated.hardware = "p3dn-v100";
  CHECK(notes("emulated.hardware changes nothing unless device is \"emulated\"") == 1);
}

}  // namespace lancet

namespace lancet::train {

// What a step's record says of its MoE layers, from the outputs of the plans that ran.

namespace {

// Two micro batches of six tokens with two layers of three experts.
StepTally two_layers(bool z_loss, bool bias) {
  StepTally tally(2, 3);
  const std::vector<std::vector<float>> aux{{1, 0.25f}, {1, 0.5f}}, load{{4, 2, 0, 3, 2, 0}, {6, 3, 3, 6, 2, 1}};
  const float z[] = {1.5f, 0.5f};
  const std::vector<float> biases[] = {{-0.25f, 0, 0.5f}, {2, 2, 2}};
  LayerOutputs layers;
  layers.aux = {aux[0].data(), aux[1].data()};
  layers.load = {load[0], load[1]};
  if (z_loss) layers.z_loss = {&z[0], &z[1]};
  if (bias) layers.bias = {biases[0], biases[1]};
  tally.clear();
  for (int micro = 0; micro < 2; ++micro) tally.add(layers);
  return tally;
}

}  // namespace

TEST_CASE("step tally: load, drops, dead experts, experts per token, z-loss and spread of biases") {
  run::StepRecord record;
  StepTally tally = two_layers(true, true);
  tally.fill(record, true, 12);
  CHECK(tally.kept() == 28);
  REQUIRE(tally.layers().size() == 2);
  const run::LayerLoad &first = tally.layers()[0], &second = tally.layers()[1];
  CHECK(first.max_over_mean == Approx(2));
  CHECK(second.max_over_mean == Approx(1.5));
  CHECK(first.drop_pct == Approx(100. / 6));
  CHECK(second.drop_pct == Approx(25));
  CHECK(first.dead_experts == 1);
  CHECK(second.dead_experts == 0);
  CHECK(std::vector(first.expert_tokens.begin(), first.expert_tokens.end()) == std::vector<double>{8, 4, 0});
  CHECK(first.experts_per_token == 1);
  CHECK(second.experts_per_token == 2);
  CHECK(first.z_loss == 3.);
  CHECK(second.z_loss == 1.);
  CHECK(first.bias_spread == 0.75);
  CHECK(second.bias_spread == 0.);
  CHECK(record.experts_per_token == 1.5);
  CHECK(record.drop_pct.value() == Approx(100 * (1 - 28. / 36)));
  CHECK(record.dead_experts == 1);
  CHECK(record.router_entropy == 0.75);
  CHECK(record.z_loss == 4.);
  CHECK(record.bias_spread == 0.75);
}

TEST_CASE("step tally: what the routers have not is empty, also after a step that had it") {
  StepTally tally = two_layers(true, true);
  tally.clear();
  run::StepRecord record;
  tally.fill(record, true, 12);
  CHECK_FALSE(record.z_loss.has_value());
  CHECK_FALSE(record.bias_spread.has_value());
  CHECK(record.drop_pct == 0);  // of no tokens
  CHECK(record.load_max_over_mean == 0);
  tally = two_layers(false, false);
  tally.fill(record, true, 12);
  CHECK_FALSE(record.z_loss.has_value());
  CHECK_FALSE(tally.layers()[0].bias_spread.has_value());
  CHECK(record.experts_per_token == 1.5);
}

TEST_CASE("a warm-up and a decay that do not fit the steps are said, with what happens") {
  const test::TemporaryFolder folder;
  auto config = test::small_config();
  config.train.steps = 6;
  config.log.run_dir = folder / "run";
  const auto warnings = [&](config::LrSchedule schedule, int warmup, int decay, const char* text) {
    std::filesystem::remove_all(config.log.run_dir);
    config.train.lr_schedule = schedule;
    config.train.lr_warmup_steps = warmup;
    config.train.lr_decay_steps = decay;
    const test::LogCapture log;
    const auto world = comm::make_self();
    REQUIRE(train::train(config, *world, {.local_ranks = 1}).ok());
    CHECK(log.count("expected at most train.steps") == log.count(text));
    return log.count(text);
  };
  using enum config::LrSchedule;
  CHECK(warnings(wsd, 4, 2, "train.steps = 6") == 0);
  CHECK(warnings(linear, 4, 4, "expected at most") == 0);
  const std::string both = "train.lr_warmup_steps + train.lr_decay_steps: expected at most train.steps = 6, found ";
  CHECK(warnings(wsd, 4, 4, (both + "4 + 4; the decay takes 2 steps").c_str()) == 1);
  CHECK(warnings(wsd, 0, 8, (both + "0 + 8; the decay takes 6 steps").c_str()) == 1);
  CHECK(warnings(cosine, 7, 0,
                 "train.lr_warmup_steps: expected at most train.steps = 6, found 7; the run ends before it reaches "
                 "train.lr") == 1);
}

}  // namespace lancet::train
