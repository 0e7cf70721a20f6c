// Every family trains in bf16 as it does in fp32, but for rounding.
#include <catch2/catch.hpp>
#include <cmath>
#include <string>

#include "declared_costs.h"
#include "lancet/config/family.h"
#include "train/meshes.h"

namespace lancet {
namespace {

// bf16 rounds by at most 2^-9 of a number. Four blocks round about 40 results in a row, which add up to sqrt(40) 2^-9 =
// 1.2% of a logit at most. The loss is a mean over 128 tokens, whose errors have both signs: 1.2% / sqrt(128) = 0.1%.
// Losses were apart by at most 0.017%.
constexpr double tolerance = 0x1p-10;

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

}  // namespace lancet
