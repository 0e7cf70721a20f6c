// bf16 weights without f32 copies: rounded stochastically.
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "lancet/planner/from_config.h"
#include "train/support.h"

namespace lancet {
namespace {

config::Config rounded_config() {
  auto config = test::small_config();
  config.train.dtype = DType::bf16;
  config.train.master_weights = false;
  return config;
}

double last_loss(const config::Config& config, int ranks, int steps) {
  return test::run_steps(config, ranks, steps).back().loss;
}

}  // namespace

TEST_CASE("without master weights none are stored, and every tensor has its own rounding numbers") {
  const auto plan = planner::plan_step({rounded_config(), 1}, {});
  REQUIRE(plan.ok());
  std::set<std::int64_t> seeds;
  std::size_t updates = 0;
  for (const ir::Instruction& instruction : plan->program.instructions)
    if (instruction.op == "adamw") {
      ++updates;
      if (instruction.attributes.has("rounding_seed")) seeds.insert(instruction.attributes.integer("rounding_seed"));
    }
  std::size_t rounded = 0;
  for (const ir::Tensor& tensor : plan->program.tensors) {
    CHECK_FALSE(tensor.name.ends_with(".master"));
    rounded += tensor.kind == ir::TensorKind::parameter && tensor.type.dtype == DType::bf16;
  }
  CHECK(rounded > 10);
  CHECK(seeds.size() == rounded);
  CHECK(updates >= rounded);
  CHECK(plan->header.text("optimizer").find("stochastic rounding") != std::string::npos);
}

// A step of 1e-5 is far below half of a bf16 step of weights around 0.02 (2^-14 = 6e-5), so rounding to nearest would
// change no such weight, and the loss would not fall.
TEST_CASE("updates smaller than a bf16 step take effect in the mean") {
  auto config = rounded_config();
  config.train.lr = 2e-5;
  const auto stochastic = test::run_steps(config, 1, 60);
  config.train.master_weights = true;
  const auto exact = test::run_steps(config, 1, 60);
  const double fell = exact.front().loss - exact.back().loss;
  INFO("with masters " << exact.front().loss << " to " << exact.back().loss << ", without " << stochastic.back().loss);
  CHECK(fell > 0.005);
  CHECK(std::abs(stochastic.back().loss - exact.back().loss) < 0.3 * fell);
}

TEST_CASE("training without master weights follows training with them, reproducibly, on one rank and two") {
  auto config = rounded_config();
  const double first = last_loss(config, 1, 40);
  CHECK(last_loss(config, 1, 40) == first);
  CHECK(last_loss(config, 2, 40) == Approx(last_loss(config, 2, 40)).epsilon(0));
  config.train.master_weights = true;
  CHECK(first == Approx(last_loss(config, 1, 40)).epsilon(0.02));
}

}  // namespace lancet
