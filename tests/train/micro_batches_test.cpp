// A step's micro batches in one plan: the same bits, whatever number of them the plan holds.
#include <catch2/catch.hpp>
#include <map>

#include "declared_costs.h"
#include "good.h"
#include "lancet/data/batches.h"
#include "lancet/ir/micro_batches.h"
#include "lancet/planner/from_config.h"
#include "lancet/planner/planner.h"
#include "lancet/run/stream_communicators.h"
#include "train/rank_state.h"
#include "train/support.h"

namespace lancet {
namespace {

constexpr int micro_ranks = 2;
constexpr int all_micro_batches = 6;

config::Config micro_config() {
  config::Config config = test::small_config();
  config.train.micro_batch_size = 2;
  config.train.gradient_accumulation_steps = all_micro_batches;
  return config;
}

// As planning makes it of the config, but for the number of micro batches in the plan.
ir::Plan micro_plan(const config::Config& config, int in_plan, const cost::Costs* costs) {
  const planner::StepModel model(config, micro_ranks);
  planner::PlanRequest request = model.request().value();
  request.overlap.across_steps = false;  // the runs below look at the weights after every step
  request.costs = costs;
  request.accumulate = true;
  request.micro_batches = in_plan;
  auto plan = test::good(planner::make_plan(model.forward, request));
  if (const Status sound = ir::verify(*plan); !sound.ok()) throw InternalError(sound.error().message);
  return *plan;
}

struct Trained {
  std::vector<std::vector<float>> reports;             // of rank 0: losses and loads, micro batch by micro batch
  std::map<std::string, std::vector<std::byte>> held;  // by rank and tensor
};

void report(const train::BoundStep& step, Trained& trained) {
  for (const train::BoundMicroBatch& micro : step.micro_batches) {
    std::vector<float>& values = trained.reports.emplace_back(std::vector<float>{*micro.loss});
    for (const float* aux : micro.layers.aux) values.insert(values.end(), aux, aux + 2);
    for (const auto& load : micro.layers.load) values.insert(values.end(), load.begin(), load.end());
  }
}

Status train_rank(const config::Config& config, const ir::Plan& plan, comm::Communicator& world, Trained& trained) {
  LANCET_ASSIGN(run::Streams streams, run::Streams::make(config, world, nullptr));
  LANCET_TRY(streams.open_groups(config::mesh_of(config, micro_ranks), plan.program));
  runtime::TensorStore store;
  store.set_rank(config::mesh_of(config, micro_ranks), world.rank());
  store.add(plan.program);
  LANCET_TRY(train::initialize_weights(config, store));
  LANCET_ASSIGN(train::BoundStep step, train::BoundStep::bind(plan, store, streams.executor_options(1)));
  LANCET_ASSIGN(const auto batches, data::training_batches(config, {}, world.rank(), micro_ranks));
  const data::SequenceOrder order = data::training_order(config, world.rank(), micro_ranks);
  for (int number = 0; number < 3; ++number) {
    const float schedule[] = {1e-3f, 0.1f, 0.001f, float(number + 1)};
    std::copy(std::begin(schedule), std::end(schedule), step.schedule);
    for (int micro = 0; micro < all_micro_batches;) {
      for (train::BoundMicroBatch& bound : step.micro_batches) {
        order.fill(number, micro, bound.sequence);
        LANCET_TRY(batches->fill(number, micro++, bound.tokens, bound.targets));
      }
      using Which = runtime::Executor::Run;
      LANCET_TRY(step.executor->run(micro == all_micro_batches ? Which::last : Which::earlier));
      if (world.rank() == 0) report(step, trained);
    }
  }
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  for (const auto& [name, tensor] : store.all()) {
    const auto bytes = tensor.memory.span<const std::byte>();
    trained.held[std::to_string(world.rank()) + " " + name] = {bytes.begin(), bytes.end()};
  }
  return {};
}

Trained trained_by(const config::Config& config, const ir::Plan& plan) {
  Trained trained;
  test::good(comm::run_inproc(
      micro_ranks, [&](comm::Communicator& world) -> Status { return train_rank(config, plan, world, trained); }));
  return trained;
}

// These numbers of micro batches in a plan give the bits of a plan with one.
void check_same_bits(const config::Config& config, const cost::Costs* costs = nullptr,
                     std::initializer_list<int> numbers = {2, 3, 6}) {
  const Trained expected = trained_by(config, micro_plan(config, 1, costs));
  REQUIRE(expected.reports.size() == 3 * all_micro_batches);
  for (const int in_plan : numbers) {
    INFO(in_plan << " micro batches in the plan");
    const ir::Plan plan = micro_plan(config, in_plan, costs);
    CHECK(ir::micro_batches(plan.program) == in_plan);
    const Trained found = trained_by(config, plan);
    CHECK(found.reports == expected.reports);
    REQUIRE(found.held.size() == expected.held.size());
    for (const auto& [name, bytes] : expected.held) {
      INFO(name);
      CHECK(found.held.at(name) == bytes);
    }
  }
}

}  // namespace

TEST_CASE("micro batches: a plan of several makes the bits of a plan that runs for each") {
  config::Config config = micro_config();
  SECTION("clipped") {}
  SECTION("without clipping, updates between gradients") { config.train.clip_grad = 0; }
  SECTION("guarded updates") { config.train.on_non_finite = config::OnNonFinite::skip; }
  SECTION("ZeRO-1") { config.train.zero = 1; }
  SECTION("bf16, with gradients that travel so") { config.train.dtype = config.train.reduce_dtype = DType::bf16; }
  SECTION("an auxiliary loss and drops") {
    config.model.router_aux_loss_coef = 0.02;
    config.model.capacity_factor = 0.75;
  }
  SECTION("an auxiliary loss that counts the micro batches so far") {
    config.model.router_aux_loss_coef = 0.5;
    config.model.router_aux_loss_scope = config::AuxLossScope::global;
  }
  SECTION("random choices by the number of the sequence") {
    config.model.router = config::Router::gshard;
    config.model.num_experts_per_tok = 2;
  }
  SECTION("biases that balance the load") {
    config.model.router = config::Router::sigmoid;
    config.model.num_experts_per_tok = 2;
    config.model.router_bias_update_rate = 0.01;
  }
  SECTION("rounds without drops") {
    config.model.router = config::Router::top_k;
    config.model.num_experts_per_tok = 2;
    config.model.capacity_factor = {};
    config.model.dropless_imbalance = 0.4;
  }
  check_same_bits(config);
}

TEST_CASE("micro batches: under every policy a plan of several makes the bits of a plan that runs for each") {
  config::Config config = micro_config();
  config.model.router_aux_loss_coef = 0.5;
  config.model.router_aux_loss_scope = config::AuxLossScope::global;
  config.train.clip_grad = 0;
  config.overlap.memory_factor = 3;  // pairs of micro batches need more than the default
  const test::DeclaredCosts costs;
  int in_plan = 6;
  for (const auto& [policy, what, cuts] : planner::policies()) {
    INFO(policy);
    config.overlap.policy = policy;
    // Which number of parts is the shortest depends on the micro batches.
    config.overlap.parts = policy == "lancet" ? 1 : 2;
    check_same_bits(config, &costs, {in_plan});
    in_plan = in_plan == 3 ? 6 : 3;
  }
}

TEST_CASE("micro batches: memory does not grow with their number") {
  config::Config config = micro_config();
  config.train.micro_batch_size = 8;
  config.overlap.max_parts = 4;
  config.overlap.memory_factor = 1.05;
  const test::DeclaredCosts costs;
  const ir::Plan sequential = micro_plan(config, 1, &costs);
  // Beside the activations the arena holds what each micro batch reports.
  const auto within = [&](const ir::Plan& plan, double factor) {
    CHECK(double(plan.arena_bytes) <= factor * double(sequential.arena_bytes) + 12 * 1024);
  };
  // Where neighbours are in one order, two are alive at once, the first and the last of which have one neighbour alone.
  for (const double factor : {1.05, 3.0})
    for (const auto& [policy, what, cuts] : planner::policies()) {
      INFO(policy << ", memory_factor " << factor);
      config.overlap.policy = policy;
      config.overlap.memory_factor = factor;
      const int few = policy == "neighbour_microbatches" || policy == "lancet" ? 4 : 1;
      within(micro_plan(config, 12, &costs),
             1.02 * double(micro_plan(config, few, &costs).arena_bytes) / double(sequential.arena_bytes));
    }
  for (const double factor : {1.05, 3.0})
    for (const auto policy : {"lancet", "auto", "comet", "collective_matmul", "flowmoe"}) {
      INFO(policy << ", memory_factor " << factor);
      config.overlap.policy = policy;
      config.overlap.memory_factor = factor;
      within(micro_plan(config, 1, &costs), factor);
      within(micro_plan(config, 6, &costs), factor);
    }
  config.overlap.policy = "neighbour_microbatches";  // without room for pairs it is dw
  const ir::Plan pairs = micro_plan(config, 6, &costs);
  within(pairs, 3);
  CHECK(pairs.arena_bytes > sequential.arena_bytes * 5 / 4);  // the activations of two micro batches are alive
  config.overlap.policy = "sequential";
  CHECK(micro_plan(config, 6, nullptr).arena_bytes <= sequential.arena_bytes + 6 * 4096);
}

TEST_CASE("micro batches: a plan holds the most, up to eight, that divide the step's") {
  config::Config config;
  for (const auto& [all, in_plan] :
       {std::pair{1, 1}, {2, 2}, {7, 7}, {8, 8}, {9, 3}, {11, 1}, {12, 6}, {16, 8}, {1'000'000, 8}}) {
    config.train.gradient_accumulation_steps = all;
    CHECK(planner::micro_batches_in_plan(config) == in_plan);
  }
  config.mesh.stage = 2;
  for (const auto& [all, in_plan] : {std::pair{1, 1}, {11, 11}, {16, 16}, {64, 64}, {67, 1}, {128, 64}}) {
    config.train.gradient_accumulation_steps = all;
    CHECK(planner::micro_batches_in_plan(config) == in_plan);
  }
}

TEST_CASE("micro batches: a step of more than a plan holds trains as the same rows in larger micro batches") {
  config::Config config = test::small_config();
  config.train.micro_batch_size = 12;
  const auto expected = test::run_steps(config, 1, 5);
  config.train.micro_batch_size = 1;
  config.train.gradient_accumulation_steps = 12;  // two runs of six
  const auto found = test::run_steps(config, 1, 5);
  config.train.gradient_accumulation_steps = 4;
  config.train.micro_batch_size = 3;
  const auto in_one_run = test::run_steps(config, 1, 5);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    INFO("step " << i + 1);
    for (const auto& record : {found[i], in_one_run[i]}) {
      CHECK(record.loss == Approx(expected[i].loss).epsilon(1e-5));
      CHECK(record.grad_norm == Approx(expected[i].grad_norm).epsilon(1e-4));
      CHECK(record.load_max_over_mean.value() == Approx(expected[i].load_max_over_mean.value()).epsilon(1e-2));
    }
  }
}

}  // namespace lancet
