// One loss (rule 6): the same global batch gives the same training at any number of ranks, micro batches and threads.
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "good.h"
#include "lancet/planner/from_config.h"
#include "routers.h"
#include "train/rank_state.h"
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

// Extreme expert loads and sizes, at which other systems hang or break: they train here.

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
  auto trainer = test::good(train::Trainer::create(config, *world));
  Status status;
  for (int step = 0; step < 5 && status.ok(); ++step)
    if (auto record = (*trainer)->step(step); !record.ok()) status = record.error();
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ExitCode::numerical);
  CHECK(status.error().message.find("step 2: expected a finite loss and gradient norm, found loss") == 0);
  CHECK(status.error().message.find("first not finite on rank 0 in micro batch 0: @") != std::string::npos);
  CHECK(status.error().message.find("it may be a consequence") != std::string::npos);
}

// bf16 weights without f32 copies: rounded stochastically.

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
  const auto plan = test::good(planner::plan_step({rounded_config(), 1}, {}));
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
