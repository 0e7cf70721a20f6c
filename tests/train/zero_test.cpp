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

config::Config zero_config() {
  config::Config config = test::small_config();
  config.model.num_local_experts = 4;
  config.train.micro_batch_size = 4;
  config.model.router_group_size = 2;
  config.train.weight_decay = 0.1;
  config.train.clip_grad = 0;
  return config;
}

// Whether all ranks have the same bits of the weights that all hold.
bool same_on_all_ranks(const test::Ran& ran) {
  for (const ir::Tensor& tensor : ran.plan.program.tensors)
    if (tensor.kind == ir::TensorKind::parameter && !tensor.sharding)
      for (const test::Tensors& held : ran.parameters)
        if (held.at(tensor.name) != ran.parameters[0].at(tensor.name)) return false;
  return true;
}

std::ptrdiff_t scatters(const test::Ran& ran) {
  return std::ranges::count(ran.plan.program.instructions, ops::Kind::flat_reduce_scatter,
                            [](const ir::Instruction& at) { return ops::kind(at); });
}

double state_bytes(const test::Ran& ran) {
  double sum = 0;
  for (const auto& [name, bytes] : ran.states[0]) sum += double(bytes.size());
  return sum;
}

void check_same_bits(const test::Ran& found, const test::Ran& expected) {
  CHECK(found.parameters[0] == expected.parameters[0]);
  CHECK(same_on_all_ranks(found));
  CHECK(scatters(found) > 0);
  CHECK(scatters(expected) == 0);
  for (std::size_t i = 0; i < expected.records.size(); ++i) {
    CHECK(found.records[i].loss == expected.records[i].loss);
    // Sums of a few f32 in another order.
    CHECK(found.records[i].grad_norm == Approx(expected.records[i].grad_norm).epsilon(1e-6));
  }
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
  const test::Ran expected = test::run_of(config, ranks, 20);
  CHECK(expected.records.back().loss < expected.records.front().loss - 0.05);
  config.train.zero = 1;
  check_same_bits(test::run_of(config, ranks, 20), expected);
}

TEST_CASE("ZeRO-1 with clipping differs by the order of the norm's sum alone") {
  auto config = zero_config();
  config.train.clip_grad = 1;
  const test::Ran expected = test::run_of(config, 2, 20);
  config.train.zero = 1;
  const test::Ran found = test::run_of(config, 2, 20);
  CHECK(same_on_all_ranks(found));
  for (std::size_t i = 0; i < expected.records.size(); ++i) {
    CHECK(found.records[i].loss == Approx(expected.records[i].loss).epsilon(1e-5));
    CHECK(found.records[i].grad_norm == Approx(expected.records[i].grad_norm).epsilon(i > 0 ? 1e-4 : 1e-6));
  }
}

TEST_CASE("ZeRO-1 divides the optimizer's state by the ranks that share a weight") {
  auto config = zero_config();
  config.model.moe_layer_freq = 0;
  config.model.num_local_experts.reset();
  config.model.router_group_size.reset();
  const double whole = state_bytes(test::run_of(config, 4, 1));
  config.train.zero = 1;
  const double shards = state_bytes(test::run_of(config, 4, 1));
  CHECK(shards < 0.26 * whole);  // a quarter, and padding
  CHECK(shards >= 0.25 * whole);
  CHECK(double(planner::least_memory({config, 4})->front().state) == shards);
}

TEST_CASE("gradients in bf16 train alike, with ZeRO-1 and without, on all ranks to the bit") {
  auto config = zero_config();
  const test::Ran exact = test::run_of(config, 3, 20);
  config.train.reduce_dtype = DType::bf16;
  for (const int zero : {0, 1}) {
    config.train.zero = zero;
    const test::Ran rounded = test::run_of(config, 3, 20);
    CHECK(same_on_all_ranks(rounded));
    CHECK(rounded.records.back().loss != exact.records.back().loss);
    for (std::size_t i = 0; i < exact.records.size(); ++i)
      CHECK(rounded.records[i].loss == Approx(exact.records[i].loss).epsilon(5e-3));
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
