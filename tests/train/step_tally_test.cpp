// What a step's record says of its MoE layers, from the outputs of the plans that ran.
#include "train/after_step.h"

#include <catch2/catch.hpp>

namespace lancet::train {
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

}  // namespace lancet::train
