// One loss (rule 6): the same global batch gives the same training at any number of ranks, micro batches and threads.
#include <catch2/catch.hpp>

#include "routers.h"
#include "train/support.h"

namespace lancet {
namespace {

void check_same(const std::vector<run::StepRecord>& found, const std::vector<run::StepRecord>& expected,
                double epsilon) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    INFO("step " << i + 1);
    CHECK(found[i].loss == Approx(expected[i].loss).epsilon(epsilon));
    CHECK(found[i].grad_norm == Approx(expected[i].grad_norm).epsilon(20 * epsilon));
    CHECK(found[i].load_max_over_mean.value() == Approx(expected[i].load_max_over_mean.value()));
    CHECK(found[i].drop_pct.value() == 0);
  }
}

}  // namespace

TEST_CASE("1, 2 and 4 ranks train alike") {
  auto config = test::small_config();
  const int router = GENERATE(range(0, int(test::routes.size())));
  test::routes[std::size_t(router)].set(config.model);
  if (router % 2) {  // with the auxiliary loss over the whole batch
    config.model.router_aux_loss_coef = 0.05;
    config.model.router_aux_loss_scope = config::AuxLossScope::global;
  }
  const auto one = test::run_steps(config, 1, 20);
  CHECK(one.back().loss < one.front().loss - 0.3);  // the loss falls
  for (int ranks : {2, 4}) {
    config.train.micro_batch_size = 8 / ranks;
    INFO(ranks << " ranks");
    const auto several = test::run_steps(config, ranks, 20);
    check_same(several, one, 1e-5);
    if (config.model.router_aux_loss_coef > 0)
      for (std::size_t i = 0; i < one.size(); ++i) CHECK(several[i].aux_loss == Approx(one[i].aux_loss).epsilon(1e-4));
  }
}

TEST_CASE("groups of tokens keep and drop alike on any number of ranks") {
  auto config = test::small_config();
  const test::Route route = GENERATE(from_range(test::routes));
  route.set(config.model);
  config.model.capacity_factor = 0.75;
  config.model.router_aux_loss_coef = 0;
  config.model.router_group_size = 2;
  const auto one = test::run_steps(config, 1, 5);
  CHECK((one.front().drop_pct.value() > 0) == route.drops());
  for (int ranks : {2, 4}) {
    config.train.micro_batch_size = 8 / ranks;
    const auto several = test::run_steps(config, ranks, 5);
    for (std::size_t i = 0; i < one.size(); ++i) {
      INFO(ranks << " ranks, step " << i + 1);
      CHECK(several[i].loss == Approx(one[i].loss).epsilon(1e-5));
      CHECK(several[i].drop_pct.value() == Approx(one[i].drop_pct.value()));
    }
  }
  config.model.router_group_size.reset();  // of 2 sequences on 4 ranks
  CHECK(test::run_steps(config, 4, 5).back().loss == Approx(one.back().loss).epsilon(1e-5));
  config.train.micro_batch_size = 8;
  CHECK(test::run_steps(config, 1, 5).back().loss != Approx(one.back().loss).epsilon(1e-5));
}

TEST_CASE("the number of threads changes no bit") {
  auto config = test::small_config();
  config.train.dtype = GENERATE(DType::f32, DType::bf16);
  const auto one = test::run_steps(config, 1, 5);
  config.threads = 2;
  const auto two = test::run_steps(config, 1, 5);
  for (std::size_t i = 0; i < one.size(); ++i) {
    CHECK(one[i].loss == two[i].loss);
    CHECK(one[i].grad_norm == two[i].grad_norm);
  }
}

TEST_CASE("bf16 follows fp32 on a small model") {
  auto config = test::small_config();
  config.train.lr_warmup_steps = 10;
  const auto exact = test::run_steps(config, 1, 100);
  config.train.dtype = DType::bf16;
  const auto rounded = test::run_steps(config, 1, 100);
  double exact_mean = 0, rounded_mean = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    exact_mean += exact[i].loss / 100;
    rounded_mean += rounded[i].loss / 100;
    CHECK(rounded[i].loss == Approx(exact[i].loss).epsilon(0.03));  // a single batch
  }
  CHECK(rounded_mean == Approx(exact_mean).epsilon(0.01));
}

TEST_CASE("MFU counts the tokens that experts kept, whatever the slots") {
  config::Config config = test::small_config();
  auto flops = [&](double capacity_factor) {  // of a step, in units of the peak
    config.model.capacity_factor = capacity_factor;
    const run::StepRecord record = test::run_steps(config, 2, 1).front();
    REQUIRE(record.drop_pct == 0);
    return record.mfu.value() * record.step_ms;
  };
  const double full = flops(4);
  CHECK(full > 0);
  CHECK(flops(3) == Approx(full));
  CHECK(flops(6) == Approx(full));
}

}  // namespace lancet
