// ZeRO-1 and gradients in bf16 train like plain sums: the same losses under every policy, on every mesh, and across
// checkpoints.
#include <catch2/catch.hpp>

#include "in_memory.h"
#include "lancet/ops/catalogue.h"
#include "lancet/planner/from_config.h"
#include "temporary_folder.h"
#include "train/runs.h"

namespace lancet {
namespace {

struct ZeroRun {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<std::uint8_t>> weights;  // of rank 0
  bool same_on_all_ranks = true;                             // the weights that all ranks hold
  std::int64_t state_bytes = 0;
  int scatters = 0;
  std::string policy;
};

config::Config zero_config() {
  config::Config config = test::small_config();
  config.model.num_local_experts = 4;
  config.train.micro_batch_size = 4;
  config.model.router_group_size = 2;
  config.train.weight_decay = 0.1;
  config.train.clip_grad = 0;
  return config;
}

std::vector<std::uint8_t> bytes_of_tensor(const runtime::NamedTensor& tensor) {
  const auto span = tensor.memory.span<const std::uint8_t>();
  return {span.begin(), span.end()};
}

ZeroRun train_zero(const config::Config& config, int ranks, int steps) {
  ZeroRun result;
  std::vector<std::map<std::string, std::vector<std::uint8_t>>> weights(static_cast<std::size_t>(ranks));
  const Status status = comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = ranks}));
    for (int step = 0; step < steps; ++step) {
      LANCET_ASSIGN(const run::StepRecord record, trainer->step(step));
      if (world.rank() != 0) continue;
      result.losses.push_back(record.loss);
      result.norms.push_back(record.grad_norm);
    }
    for (const auto& [name, tensor] : trainer->store().all())
      if (tensor.kind == ir::TensorKind::parameter && (!tensor.sharding || world.rank() == 0))
        weights[std::size_t(world.rank())][name] = bytes_of_tensor(tensor);
    if (world.rank() != 0) return {};
    result.state_bytes = trainer->store().bytes(ir::TensorKind::state);
    const ir::Plan& plan = trainer->executor().plan();
    result.policy = plan.header.text("policy");
    for (const ir::Instruction& at : plan.program.instructions)
      result.scatters += ops::kind(at) == ops::Kind::flat_reduce_scatter;
    return {};
  });
  if (!status.ok()) throw InternalError(status.error().message);
  result.weights = weights[0];
  for (const auto& of_rank : weights)
    for (const auto& [name, bytes] : of_rank) result.same_on_all_ranks &= bytes == weights[0].at(name);
  return result;
}

void check_same_bits(const ZeroRun& found, const ZeroRun& expected) {
  CHECK(found.losses == expected.losses);
  CHECK(found.weights == expected.weights);
  CHECK(found.same_on_all_ranks);
  CHECK(found.scatters > 0);
  CHECK(expected.scatters == 0);
  for (std::size_t i = 0; i < expected.norms.size(); ++i)  // sums of a few f32 in another order
    CHECK(found.norms[i] == Approx(expected.norms[i]).epsilon(1e-6));
}

}  // namespace

TEST_CASE("20 steps with ZeRO-1 equal those without, bit for bit, on every mesh, type and optimizer") {
  auto config = zero_config();
  int ranks = 2;
  SECTION("two ranks") {}
  SECTION("three ranks, whose shards end in padding") {
    ranks = 3;
    config.train.micro_batch_size = 2;
  }
  SECTION("experts with replicas") {
    ranks = 4;
    config.train.micro_batch_size = 2;
    config.mesh.data = 2;
  }
  SECTION("data parallel alone") {
    ranks = 4;
    config.train.micro_batch_size = 2;
    config.mesh.data = 4;
  }
  SECTION("bf16 with masters") { config.train.dtype = DType::bf16; }
  SECTION("bf16 rounded stochastically") {
    config.train.dtype = DType::bf16;
    config.train.master_weights = false;
  }
  SECTION("sgd") { config.train.optimizer = config::Optimizer::sgd; }
  SECTION("micro batches") {
    config.train.micro_batch_size = 2;
    config.train.gradient_accumulation_steps = 2;
  }
  const ZeroRun expected = train_zero(config, ranks, 20);
  CHECK(expected.losses.back() < expected.losses.front() - 0.05);
  config.train.zero = 1;
  check_same_bits(train_zero(config, ranks, 20), expected);
}

TEST_CASE("ZeRO-1 with clipping differs by the order of the norm's sum alone") {
  auto config = zero_config();
  config.train.clip_grad = 1;
  const ZeroRun expected = train_zero(config, 2, 20);
  config.train.zero = 1;
  const ZeroRun found = train_zero(config, 2, 20);
  CHECK(found.same_on_all_ranks);
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    CHECK(found.losses[i] == Approx(expected.losses[i]).epsilon(1e-5));
    CHECK(found.norms[i] == Approx(expected.norms[i]).epsilon(1e-4));
  }
  CHECK(found.norms[0] == Approx(expected.norms[0]).epsilon(1e-6));
}

TEST_CASE("ZeRO-1 divides the optimizer's state by the ranks that share a weight") {
  auto config = zero_config();
  config.model.moe_layer_freq = 0;
  config.model.num_local_experts.reset();
  config.model.router_group_size.reset();
  const double whole = double(train_zero(config, 4, 1).state_bytes);
  config.train.zero = 1;
  const double shards = double(train_zero(config, 4, 1).state_bytes);
  CHECK(shards < 0.26 * whole);  // a quarter, and padding
  CHECK(shards >= 0.25 * whole);
  CHECK(double(planner::least_memory({config, 4})->front().state) == shards);
}

TEST_CASE("gradients in bf16 train alike, with ZeRO-1 and without, on all ranks to the bit") {
  auto config = zero_config();
  const ZeroRun exact = train_zero(config, 3, 20);
  config.train.reduce_dtype = DType::bf16;
  for (const int zero : {0, 1}) {
    config.train.zero = zero;
    const ZeroRun rounded = train_zero(config, 3, 20);
    CHECK(rounded.same_on_all_ranks);
    CHECK(rounded.losses != exact.losses);
    for (std::size_t i = 0; i < exact.losses.size(); ++i)
      CHECK(rounded.losses[i] == Approx(exact.losses[i]).epsilon(5e-3));
  }
}

TEST_CASE("a run resumes with and without ZeRO-1, on any mesh, and bit for bit on its own") {
  const test::InMemory place;
  const test::TemporaryFolder folder;
  auto config = test::config_in(folder / "whole");
  config.train.clip_grad = 0;
  config.train.dtype = GENERATE(DType::f32, DType::bf16);
  config.model.router_group_size = 2;
  config.train.zero = 1;
  CHECK(test::train_run(config, 2).code == ExitCode::done);
  const auto whole = test::losses(folder / "whole");
  REQUIRE(whole.size() == 6);
  SECTION("on its own") {
    config.log.run_dir = folder / "own";
    test::stop_after(config, 3, 2);
    CHECK(test::train_run(config, 2).code == ExitCode::done);
    CHECK(test::losses(folder / "own") == whole);
  }
  SECTION("without, with, and without again: the same bits") {
    config.log.run_dir = folder / "changing";
    config.train.zero = 0;
    test::stop_after(config, 2, 2);
    config.train.zero = 1;
    test::stop_after(config, 4, 2);
    config.train.zero = 0;
    CHECK(test::train_run(config, 2).code == ExitCode::done);
    CHECK(test::losses(folder / "changing") == whole);
  }
  SECTION("on other meshes") {
    config.log.run_dir = folder / "moving";
    config.train.micro_batch_size = 2;
    config.mesh.data = 2;  // and expert 2
    test::stop_after(config, 2, 4);
    config.mesh.data.reset();
    config.train.micro_batch_size = 8;
    test::stop_after(config, 4, 1);
    config.train.micro_batch_size = 4;
    CHECK(test::train_run(config, 2).code == ExitCode::done);
    const auto moved = test::losses(folder / "moving");
    REQUIRE(moved.size() == 6);
    for (std::size_t i = 0; i < whole.size(); ++i)
      CHECK(moved[i] == Approx(whole[i]).epsilon(config.train.dtype == DType::f32 ? 1e-5 : 2e-2));
  }
}

}  // namespace lancet
