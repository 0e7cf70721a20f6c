#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "doubles/inproc.h"
#include "lancet/comm/collect.h"
#include "lancet/run/metrics.h"
#include "lancet/train/trainer.h"
#include "text.h"

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
