// Which blocks have experts, and how wide the experts are.
#include <catch2/catch.hpp>

#include "lancet/config/config.h"

using namespace lancet;
using namespace lancet::config;

namespace {

Config parsed(const std::vector<std::string>& overrides = {}) {
  auto config = parse("{}", "c.json", overrides);
  REQUIRE(config.ok());
  return *config;
}

}  // namespace

TEST_CASE("the first blocks can be dense, and the blocks of experts that are left are counted") {
  for (std::int64_t layers = 1; layers <= 7; ++layers)
    for (std::int64_t freq = 0; freq <= 4; ++freq)
      for (std::int64_t first = 0; first <= 8; ++first) {
        Config c = parsed();
        c.model.n_layer = layers;
        c.model.moe_layer_freq = freq;
        c.model.first_k_dense_replace = first;
        std::int64_t blocks = 0;
        for (std::int64_t i = 0; i < layers; ++i) {
          CHECK(c.model.is_moe(i) == (freq > 0 && i % freq == 0 && i >= first));
          blocks += c.model.is_moe(i);
        }
        CHECK(c.model.moe_layers() == blocks);
        CHECK(c.model.has_moe() == (blocks > 0));
        CHECK(c.model.has_dense_ffn() == (blocks < layers));
        CHECK(check(c, 1).ok() == (blocks > 0 || freq == 0));
      }
  const Status refused = check(parsed({"model.first_k_dense_replace=11", "model.n_layer=12"}), 1);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ExitCode::config);
  CHECK(refused.error().message ==
        "config: model.first_k_dense_replace: expected one that leaves a block of experts (a multiple of "
        "model.moe_layer_freq = 2 below n_layer = 12), found 11; model.moe_layer_freq=0 makes a dense model");
}

TEST_CASE("experts have a width of their own, and shared experts are as wide as several") {
  const Config c = parsed({"model.moe_intermediate_size=100", "model.n_shared_experts=3"});
  CHECK(c.model.inner() == 3072);
  CHECK(c.model.expert_inner() == 100);
  CHECK(c.model.shared_inner() == 300);
  const Config plain = parsed({"model.n_inner=50"});
  CHECK(plain.model.expert_inner() == 50);
  CHECK(plain.model.shared_inner() == 0);
}
