// Every family trains in bf16 as it does in fp32, but for rounding.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "declared_costs.h"
#include "good.h"
#include "lancet/config/family.h"
#include "lancet/train/trainer.h"
#include "train/meshes.h"

namespace lancet {
namespace {

// bf16 rounds by at most 2^-9 of a number. Four blocks round about 40 results in a row, which add up to sqrt(40) 2^-9 =
// 1.2% of a logit at most. The loss is a mean over 128 tokens, whose errors have both signs: 1.2% / sqrt(128) = 0.1%.
// Losses were apart by at most 0.017%.
constexpr double tolerance = 0x1p-10;

// By layer: the experts that each token chooses in the first step, those of a token ascending.
std::vector<std::vector<std::int32_t>> choices_of(const config::Config& config) {
  const test::DeclaredCosts costs;
  const auto world = comm::make_self();
  const auto trainer =
      test::good(train::Trainer::create(config, *world, {.local_ranks = 1, .costs = &costs, .inspect = true}));
  test::good((*trainer)->step(0));
  std::vector<std::vector<std::int32_t>> layers;
  for (std::int64_t layer = 0; layer < config.model.n_layer; ++layer) {
    const ops::TensorView view = (*trainer)->executor().output("expert.h." + std::to_string(layer));
    auto& chosen = layers.emplace_back(view.as<std::int32_t>(), view.as<std::int32_t>() + view.elements());
    for (auto token = chosen.begin(); token != chosen.end(); token += config.model.num_experts_per_tok)
      std::sort(token, token + config.model.num_experts_per_tok);
  }
  return layers;
}

}  // namespace

TEST_CASE("every family's losses in bf16 are those in fp32 but for rounding") {
  const test::DeclaredCosts costs;
  for (const config::Family* family : config::families_known()) {
    INFO(family->name);
    config::Config config = test::small_config();
    if (family->name != "gpt2") {
      test::set_family(config.model, family->name);
      config.model.num_experts_per_tok = 2;
    }
    const test::Records expected = test::run_of(config, 1, 4, {.costs = &costs}).records;
    config.train.dtype = DType::bf16;
    const test::Ran found = test::run_of(config, 1, 4, {.costs = &costs});
    REQUIRE(found.records.size() == expected.size());
    bool differs = false;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      INFO("step " << i + 1 << ": " << found.records[i].loss << ", in fp32 " << expected[i].loss);
      CHECK(std::abs(found.records[i].loss / expected[i].loss - 1) < tolerance);
      differs = differs || found.records[i].loss != expected[i].loss;
    }
    CHECK(differs);                                                             // it was bf16
    CHECK(expected.back().loss < expected.front().loss * (1 - 4 * tolerance));  // and it trained by more than that
  }
}

TEST_CASE("a model in bf16 chooses the experts that it chooses in fp32, but for rounding") {
  config::Config config = *test::good(config::load(LANCET_SOURCE_DIR "/configs/bench-qwen3-moe.json"));
  config.train.micro_batch_size = 1;
  config.train.dtype = DType::f32;
  const auto expected = choices_of(config);
  config.train.dtype = DType::bf16;
  const auto found = choices_of(config);
  const auto per_token = std::ptrdiff_t(config.model.num_experts_per_tok);
  double equal_choices = 0, equal_tokens = 0, choices = 0;
  for (std::size_t layer = 0; layer < expected.size(); ++layer)
    for (auto a = expected[layer].begin(), b = found[layer].begin(); a != expected[layer].end();
         a += per_token, b += per_token) {
      std::vector<std::int32_t> both;
      std::set_intersection(a, a + per_token, b, b + per_token, std::back_inserter(both));
      equal_choices += double(both.size());
      equal_tokens += double(both.size() == std::size_t(per_token));
      choices += double(per_token);
    }
  INFO(100 * equal_choices / choices << "% of the choices, all of " << 100 * double(per_token) * equal_tokens / choices
                                     << "% of the tokens");
  CHECK(equal_choices / choices > 0.98);
  CHECK(equal_choices < choices);  // it was bf16
}

}  // namespace lancet
