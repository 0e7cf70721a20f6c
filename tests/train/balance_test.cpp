// Routers that even out the load by themselves: the bias of sigmoid scores, and experts that choose tokens.
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <span>

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

namespace {

// The balancing losses of a step of these micro batches, by their definition, from the logits and the choices of the
// same step as one micro batch. f counts the first `choices` of each token.
double balancing_losses(train::Trainer& undivided, std::int64_t micro_batches, std::int64_t choices) {
  double loss = 0;
  for (const char* layer : {"h.0", "h.2"}) {
    const ops::TensorView logits = undivided.executor().output(std::string("score.") + layer);   // [B,S,E]
    const ops::TensorView expert = undivided.executor().output(std::string("expert.") + layer);  // [T,K]
    const std::int64_t experts = logits.shape()[2], each = expert.shape()[0] / micro_batches;
    std::vector<double> counts(static_cast<std::size_t>(experts));
    for (std::int64_t micro = 0; micro < micro_batches; ++micro) {
      std::vector<double> sums(counts.size());
      for (std::int64_t t = micro * each; t < (micro + 1) * each; ++t) {
        double all = 0;
        for (std::size_t e = 0; e < sums.size(); ++e)
          all += std::exp(logits.as<float>()[t * experts + std::int64_t(e)]);
        for (std::size_t e = 0; e < sums.size(); ++e)
          sums[e] += std::exp(logits.as<float>()[t * experts + std::int64_t(e)]) / all;
        for (std::int64_t k = 0; k < choices; ++k)
          ++counts[std::size_t(expert.as<std::int32_t>()[t * expert.shape()[1] + k])];
      }
      for (std::size_t e = 0; e < sums.size(); ++e) {
        const double f = counts[e] / double((micro + 1) * each * choices), p = sums[e] / double(each);
        loss += double(experts) * f * p / double(micro_batches);
      }
    }
  }
  return loss;
}

config::Config global_config(config::Router router) {
  config::Config config = test::small_config();
  config.model.router = router;
  config.model.num_experts_per_tok = 2;
  config.model.router_group_size = 1;
  config.model.router_aux_loss_coef = 1;
  config.model.router_aux_loss_scope = config::AuxLossScope::global;
  config.model.initializer_range = 0.2;  // uneven loads
  return config;
}

}  // namespace

TEST_CASE("a balancing loss of scope global counts the step's micro batches up to each, on every mesh") {
  config::Config config = global_config(GENERATE(config::Router::top_k, config::Router::gshard));
  const bool counts_first = config.model.router == config::Router::gshard;
  config.train.lr = 1e-12;  // so that all steps have the same weights
  config.train.micro_batch_size = 96;
  const auto world = comm::make_self();
  const auto undivided = test::good(train::Trainer::create(config, *world, {.inspect = true}));
  std::vector<std::map<int, double>> expected(2);  // by step and micro batches
  for (int step = 0; step < 2; ++step) {
    REQUIRE((*undivided)->step(step).ok());
    for (const int micro_batches : {1, 3, 16})
      expected[std::size_t(step)][micro_batches] = balancing_losses(**undivided, micro_batches, counts_first ? 1 : 2);
  }
  for (const int micro_batches : {1, 3, 16}) {  // 16: two runs of a plan, and with stages one
    std::vector<run::StepRecord> alone;
    for (const ir::Mesh& mesh : {ir::Mesh{}, ir::Mesh{{1, 2, 1, 1}}, ir::Mesh{{2, 1, 2, 1}}}) {
      INFO(micro_batches << " micro batches on " << to_string(mesh));
      config.mesh.stage = mesh[ir::Axis::stage];
      config.mesh.data = mesh[ir::Axis::data];
      config.mesh.expert = mesh[ir::Axis::expert];
      config.train.gradient_accumulation_steps = micro_batches;
      config.train.micro_batch_size = 96 / micro_batches / mesh.size(ir::batch_axes);
      const auto found = test::run_steps(config, mesh.ranks(), 2);
      if (alone.empty()) alone = found;
      for (std::size_t step = 0; step < 2; ++step) {
        CHECK(found[step].aux_loss == Approx(expected[step][micro_batches]).epsilon(1e-5));
        CHECK(found[step].loss == Approx(alone[step].loss).epsilon(1e-5));
        CHECK(found[step].grad_norm == Approx(alone[step].grad_norm).epsilon(1e-4));
      }
    }
  }
}

TEST_CASE("the gradient of a balancing loss of scope global is that of the recorded losses, with f a constant") {
  config::Config config = global_config(config::Router::top_k);
  config.train.micro_batch_size = 1;  // few tokens: none changes its experts below
  config.train.gradient_accumulation_steps = 3;
  config.train.optimizer = config::Optimizer::sgd;
  config.train.sgd_momentum = 0;
  config.train.weight_decay = 0;
  config.train.clip_grad = 0;
  config.train.lr = 1;
  const char* gate = "h.2.moe.gate.weight";
  const auto world = comm::make_self();
  const auto trainer = test::good(train::Trainer::create(config, *world));
  const std::span<float> weight = (*trainer)->store()[gate].memory.span<float>();
  std::vector<float> gradient(weight.begin(), weight.end());
  REQUIRE((*trainer)->step(0).ok());
  double norm = 0;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] -= weight[i];
    norm += double(gradient[i]) * double(gradient[i]);
  }
  norm = std::sqrt(norm);
  const auto objective_at = [&](double distance) {
    const auto records = test::run_steps(config, 1, 1, [&](train::Trainer& moved, int) {
      float* to = moved.store()[gate].memory.as<float>();
      for (std::size_t i = 0; i < gradient.size(); ++i) to[i] += float(distance * double(gradient[i]) / norm);
    });
    return records[0].loss + records[0].aux_loss;
  };
  CHECK((objective_at(1e-3) - objective_at(-1e-3)) / 2e-3 == Approx(norm).epsilon(1e-2));
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
