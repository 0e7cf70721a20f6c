// Routers that even out the load by themselves: the bias of sigmoid scores, and experts that choose tokens.
#include <catch2/catch.hpp>
#include <cmath>

#include "lancet/models/generate.h"
#include "train/support.h"

namespace lancet {
namespace {

constexpr double bias_rate = 0.02;
const char* const bias_name = "h.0.moe.gate.bias";

config::Config balance_config() {
  config::Config config = test::small_config();
  config.model.router = config::Router::sigmoid;
  config.model.num_experts_per_tok = 2;
  config.model.norm_topk_prob = true;
  config.model.router_bias_update_rate = bias_rate;
  config.model.capacity_factor = 1;
  config.model.router_group_size = 1;  // the same drops for any number of ranks
  config.train.lr = 1e-4;
  config.train.weight_decay = 0.1;
  return config;
}

// Gives every token a logit of expert 0 that is larger by 1.6 than it was: the layer norm's result becomes 1 larger.
void skew(train::Trainer& trainer) {
  float* beta = trainer.store()["h.0.ln_2.bias"].memory.as<float>();
  float* gate = trainer.store()["h.0.moe.gate.weight"].memory.as<float>();
  for (int i = 0; i < 32; ++i) beta[i] = 1, gate[i] += 0.05F;
}

struct BalancedRun {
  std::vector<double> bias, simulated, losses, unevenness;  // bias: after the last step
};

// Trains a skewed model, and simulates the bias of its first layer from the recorded choices in double.
BalancedRun train_skewed(const config::Config& config, int ranks, int steps = 20) {
  BalancedRun result;
  result.simulated.resize(4);
  const Status status = comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = ranks}));
    skew(*trainer);
    for (int step = 0; step < steps; ++step) {
      LANCET_ASSIGN(const run::StepRecord record, trainer->step(step));
      if (world.rank() != 0) continue;
      result.losses.push_back(record.loss);
      const run::LayerLoad layer = trainer->last_layers()[0];
      result.unevenness.push_back(layer.max_over_mean);
      double mean = 0;
      for (const double load : layer.expert_tokens) mean += load / 4;
      for (std::size_t e = 0; e < 4; ++e) {
        const double below = mean - layer.expert_tokens[e];
        result.simulated[e] += bias_rate * (below > 0 ? 1 : below < 0 ? -1 : 0);
      }
    }
    if (world.rank() != 0) return {};
    const float* bias = trainer->store()[bias_name].memory.as<float>();
    result.bias.assign(bias, bias + 4);
    return {};
  });
  if (!status.ok()) throw InternalError(status.error().message);
  return result;
}

void check_bias(const BalancedRun& run, const BalancedRun& expected) {
  for (std::size_t e = 0; e < 4; ++e) {
    INFO("expert " << e);
    CHECK(run.bias[e] == Approx(run.simulated[e]).margin(1e-6));
    CHECK(run.bias[e] == expected.bias[e]);
  }
  for (std::size_t i = 0; i < run.losses.size(); ++i) CHECK(run.losses[i] == Approx(expected.losses[i]).epsilon(1e-5));
}

}  // namespace

TEST_CASE("a bias evens out a skewed router's load, by the rule of its paper") {
  const BalancedRun run = train_skewed(balance_config(), 1);
  CHECK(run.unevenness.front() > 1.9);  // expert 0 is a choice of nearly every token, of two each
  CHECK(run.unevenness.back() < 1.5);
  CHECK(run.bias[0] < -0.15);
  check_bias(run, run);
}

TEST_CASE("the bias counts the choices of the whole batch: of all ranks and micro batches, before capacity") {
  const BalancedRun expected = train_skewed(balance_config(), 1);
  for (const auto& [ranks, accumulation] : {std::pair{1, 4}, {2, 1}, {4, 1}, {2, 2}}) {
    INFO(ranks << " ranks, " << accumulation << " micro batches");
    config::Config config = balance_config();
    config.train.micro_batch_size = 8 / ranks / accumulation;
    config.train.gradient_accumulation_steps = accumulation;
    check_bias(train_skewed(config, ranks), expected);
  }
}

TEST_CASE("the bias is exact under ZeRO-1 and gradients in bf16, and no part of the norm or of its clipping") {
  config::Config config = balance_config();
  config.train.micro_batch_size = 4;
  for (const bool clips : {false, true}) {
    config.train.clip_grad = clips ? 1e-3 : 0;
    config.train.zero = 0;
    config.train.reduce_dtype = DType::f32;
    const BalancedRun plain = train_skewed(config, 2);
    config.train.zero = 1;
    check_bias(train_skewed(config, 2), plain);
    config.train.reduce_dtype = DType::bf16;
    const BalancedRun rounded = train_skewed(config, 2);
    for (std::size_t e = 0; e < 4; ++e) CHECK(rounded.bias[e] == Approx(rounded.simulated[e]).margin(1e-6));
  }
}

TEST_CASE("experts that choose have even loads, drop nothing, and train") {
  config::Config config = test::small_config();
  config.model.router = config::Router::expert_choice;
  config.model.capacity_factor = 2;
  config.model.router_aux_loss_coef = 0.01;
  const auto records = test::run_steps(config, 1, 20, [](train::Trainer& trainer, int) { skew(trainer); });
  CHECK(records.back().loss < records.front().loss - 0.3);
  for (const run::StepRecord& record : records) {
    CHECK(record.drop_pct.value() == 0);
    CHECK(record.load_max_over_mean.value() == 1);
    CHECK(record.dead_experts.value() == 0);
    CHECK(record.aux_loss == Approx(2));  // of two layers, each even
  }
}

TEST_CASE("a model whose experts choose generates nothing, and says what to do instead") {
  config::Model model = test::small_model();
  CHECK(models::check_generates(model).ok());
  model.router = config::Router::expert_choice;
  const Status status = models::check_generates(model);
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ExitCode::config);
  CHECK(status.error().message.find("model.router=top_k generates") != std::string::npos);
  model.moe_layer_freq = 0;  // a dense model has no router
  CHECK(models::check_generates(model).ok());
}

TEST_CASE("the auxiliary loss of groups is that of as many ranks with a group each") {
  config::Config config = test::small_config();
  config.model.router_aux_loss_coef = 0.05;
  config.train.micro_batch_size = 2;
  const auto of_ranks = test::run_steps(config, 4, 10);
  config.train.micro_batch_size = 8;
  config.model.router_group_size = 2;
  config.model.router_aux_loss_scope = config::AuxLossScope::group;
  for (const int ranks : {1, 2}) {
    config.train.micro_batch_size = 8 / ranks;
    const auto of_groups = test::run_steps(config, ranks, 10);
    for (std::size_t i = 0; i < of_ranks.size(); ++i) {
      INFO(ranks << " ranks, step " << i + 1);
      CHECK(of_groups[i].loss == Approx(of_ranks[i].loss).epsilon(1e-5));
      CHECK(of_groups[i].aux_loss == Approx(of_ranks[i].aux_loss).epsilon(1e-5));
      CHECK(of_groups[i].load_max_over_mean.value() == Approx(of_ranks[i].load_max_over_mean.value()));
    }
  }
}

TEST_CASE("the z-loss is recorded, and keeps logits small") {
  config::Config config = test::small_config();
  CHECK_FALSE(test::run_steps(config, 1, 1)[0].z_loss);
  config.model.router_z_loss_coef = 1;
  const auto records = test::run_steps(config, 1, 30);
  CHECK(records.front().z_loss.value() == Approx(2 * std::pow(std::log(4.0), 2)).epsilon(0.05));  // two layers
  CHECK(records.back().z_loss.value() < records.front().z_loss.value());
}

}  // namespace lancet
