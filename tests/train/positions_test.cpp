// Training in parts of the positions of one sequence: the losses, routes and drops of the whole.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <utility>

#include "declared_costs.h"
#include "lancet/schedule/plan_memory.h"
#include "train/meshes.h"

namespace lancet {
namespace {

using test::Ran;

// One sequence a rank; without a limit of memory that parts of a model as small as this one would not fit.
config::Config one_sequence(const std::string& family, bool drops) {
  config::Config config = test::small_config();
  if (family != "gpt2") test::set_family(config.model, family);
  config.model.experts_per_rank.reset();
  config.model.num_local_experts = 4;
  config.model.router = config::Router::top_k;
  config.model.num_experts_per_tok = 2;
  config.model.capacity_factor.reset();
  if (drops) config.model.capacity_factor = 0.75;
  config.train.micro_batch_size = 1;
  config.overlap.memory_factor = 10;
  return config;
}

// Attention's parts of the positions in the plan: all in the forward pass; in the backward pass, whose last part is the
// first to run, those that add what later parts have found.
std::ptrdiff_t attention_parts(const ir::Plan& plan, ir::Role role) {
  const auto [op, operands] = role == ir::Role::forward ? std::pair("attention", 2) : std::pair("attention_dx", 6);
  return std::ranges::count_if(plan.program.instructions, [&](const ir::Instruction& at) {
    return at.op == op && at.operands.size() == std::size_t(operands) && at.role == role;
  });
}

}  // namespace

TEST_CASE("parts of the positions train like the whole sequence") {
  const auto& [family, data, tensor] = GENERATE(table<std::string, int, int>(
      {{"gpt2", 1, 1}, {"qwen3_moe", 1, 1}, {"gpt2", 2, 1}, {"olmoe", 2, 1}, {"olmoe", 1, 2}, {"qwen2_moe", 1, 2}}));
  config::Config config = one_sequence(family, data == 2);
  config.mesh.data = data;
  config.mesh.expert = 2;
  config.mesh.tensor = tensor;
  const int ranks = 2 * data * tensor;
  const test::DeclaredCosts costs;
  const Ran whole = test::run_of(config, ranks, 3, {.costs = &costs, .inspect = true});
  REQUIRE(whole.policy() == "sequential");
  for (const auto& [policy, parts] : {std::pair{"lancet", 2}, {"flowmoe", 4}, {"partition", data == 1 ? 4 : 2}}) {
    INFO(family << " on data " << data << ", expert 2, tensor " << tensor << ": " << policy << " in " << parts);
    config.overlap.policy = policy;
    config.overlap.parts = parts;
    const Ran found = test::run_of(config, ranks, 3, {.costs = &costs, .inspect = true});
    CHECK(attention_parts(found.plan, ir::Role::forward) >= parts);
    if (policy == std::string("flowmoe")) CHECK(attention_parts(found.plan, ir::Role::dx) >= parts - 1);
    test::check_records(found.records, whole.records, 2e-6);
    CHECK(found.routes == whole.routes);
  }
}

TEST_CASE("within a memory limit, parts of the positions are recomputed in parts") {
  config::Config config = one_sequence("qwen3_moe", false);
  config.model.n_layer = 3;
  config.model.n_positions = config.train.seq_len = 1024;
  const test::DeclaredCosts costs;
  const Ran whole = test::run_of(config, 2, 2, {.costs = &costs});
  config.train.memory_limit_mb = (schedule::plan_bytes(whole.plan) - whole.plan.arena_bytes / 10) / 1'000'000;
  config.overlap.policy = "flowmoe";
  config.overlap.parts = 2;
  const Ran found = test::run_of(config, 2, 2, {.costs = &costs});
  CHECK(attention_parts(found.plan, ir::Role::forward) > 0);
  CHECK(std::ranges::any_of(found.plan.program.instructions, [](const ir::Instruction& at) {
    return at.role == ir::Role::recompute && at.attributes.has("parts");
  }));
  test::check_records(found.records, whole.records, 2e-6);
}

}  // namespace lancet
