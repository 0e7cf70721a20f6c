// Extreme expert loads and sizes, at which other systems hang or break: they train here.
#include <catch2/catch.hpp>
#include <cmath>

#include "train/rank_state.h"
#include "train/support.h"

namespace lancet {
namespace {

// Gate weights of zero: all probabilities are equal, and the lowest index wins, so that every token chooses expert 0.
void send_all_to_expert_0(train::Trainer& trainer) {
  for (const char* layer : {"h.0", "h.2"}) {
    const std::string name = std::string(layer) + ".moe.gate.weight";
    const auto elements = static_cast<std::size_t>(trainer.store()[name].type.shape.elements());
    REQUIRE(train::set_parameter(trainer.store(), name, std::vector<float>(elements, 0.f)).ok());
  }
}

void check_sound(const std::vector<run::StepRecord>& records) {
  for (const auto& record : records) {
    REQUIRE(std::isfinite(record.loss));
    REQUIRE(record.grad_norm > 0);
  }
}

void check_trains(const std::vector<run::StepRecord>& records) {
  check_sound(records);
  CHECK(records.back().loss < records.front().loss);
}

}  // namespace

TEST_CASE("all tokens to one expert: the other experts, and all experts of a rank, get none") {
  auto config = test::small_config();
  config.train.dtype = GENERATE(DType::f32, DType::bf16);
  const int ranks = GENERATE(1, 2, 4);
  config.train.micro_batch_size = 8 / ranks;
  const auto records = test::run_steps(config, ranks, 12, [](train::Trainer& trainer, int rank) {
    send_all_to_expert_0(trainer);
    const bool stepped = trainer.step(0).ok();
    send_all_to_expert_0(trainer);
    if (rank != 0) return;  // one thread checks
    REQUIRE(stepped);
    for (const run::LayerLoad& layer : trainer.last_layers()) {
      CHECK(layer.dead_experts == 3);
      CHECK(layer.router_entropy == Approx(std::log(4)));  // all four are equally probable
      CHECK(layer.experts_per_token == 1);
      CHECK_FALSE(layer.z_loss.has_value());
      CHECK(std::vector(layer.expert_tokens.begin(), layer.expert_tokens.end()) == std::vector<double>{128, 0, 0, 0});
    }
  });
  check_trains(records);
  CHECK(records[0].dead_experts == 6);  // 3 of 4 in each of two layers
  CHECK(records[0].load_max_over_mean.value() == Approx(4));
  CHECK(records[0].router_entropy.value() == Approx(std::log(4)));
}

TEST_CASE("capacity 1: nearly all tokens are dropped") {
  auto config = test::small_config();
  config.model.capacity_factor = 1e-6;
  const int ranks = GENERATE(1, 2);
  config.train.micro_batch_size = 8 / ranks;
  const auto records = test::run_steps(config, ranks, 5);
  check_trains(records);
  // At most one token per rank, expert and layer is kept: 4 of 64, or of 128 on one rank.
  CHECK(records[0].drop_pct.value() >= 100 * (1 - 4.0 * ranks / 128) - 1e-3);
}

TEST_CASE("batch 1, sequence 1") {
  auto config = test::small_config();
  config.train.micro_batch_size = 1;
  SECTION("one sequence per rank") {}
  SECTION("one token per rank") { config.train.seq_len = 1; }
  check_sound(test::run_steps(config, GENERATE(1, 2), 8));  // too few tokens for a falling loss
}

TEST_CASE("an exploding learning rate ends the run with the step's number") {
  auto config = test::small_config();
  config.train.lr = 1e30;
  config.train.clip_grad = 0;
  const auto world = comm::make_self();
  auto trainer = train::Trainer::create(config, *world);
  REQUIRE(trainer.ok());
  Status status;
  for (int step = 0; step < 5 && status.ok(); ++step)
    if (auto record = (*trainer)->step(step); !record.ok()) status = record.error();
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ExitCode::numerical);
  CHECK(status.error().message.find("step 2: expected a finite loss and gradient norm, found loss") == 0);
  CHECK(status.error().message.find("first not finite on rank 0 in micro batch 0: @") != std::string::npos);
  CHECK(status.error().message.find("it may be a consequence") != std::string::npos);
}

}  // namespace lancet
