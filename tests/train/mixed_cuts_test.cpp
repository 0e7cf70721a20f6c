// Training under `lancet` where it mixes cuts: rings with a list schedule, and cuts of single MoE layers.
#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <set>

#include "declared_costs.h"
#include "good.h"
#include "lancet/cost/costs.h"
#include "lancet/ir/plan.h"
#include "lancet/planner/from_config.h"
#include "lancet/schedule/step.h"
#include "temporary_folder.h"
#include "train/meshes.h"

namespace lancet {
namespace {

// A slow device, whose copies and all-reduces take no time, on a slow network.
struct CostsOfMixes : cost::Costs {
  test::DeclaredCosts others;
  // Rates at which messages take about as long as the products beside them.
  explicit CostsOfMixes(const config::Config& config) {
    others.elements_per_ms = 4000;
    others.network_mb_per_s = config.mesh.tensor > 1 ? 20 : 0.7;
    others.latency_ms = 0.001;
  }
  std::optional<double> compute_ms(std::string_view key) const override {
    for (const std::string_view copy : {"take_window(", "join_windows(", "sum(", "place_columns(", "copy("})
      if (key.starts_with(copy)) return 0.001;
    return others.compute_ms(key);
  }
  double all_to_all_ms(double bytes, ir::Axes group = {}) const override { return others.all_to_all_ms(bytes, group); }
  double all_reduce_ms(double, ir::Axes = {}) const override { return 0.001; }
  cost::CoreCost all_to_all_core() const override { return {}; }
  cost::CoreCost all_reduce_core() const override { return {}; }
  double launch_ms() const override { return 0; }
  cost::Interference interference() const override { return {}; }
};

// Costs of no other ops than a profile measures for the config.
struct CostsOfProfile final : CostsOfMixes {
  std::set<std::string, std::less<>> keys;
  CostsOfProfile(const config::Config& config, int ranks) : CostsOfMixes(config) {
    const auto programs = test::good(planner::programs_to_profile({config, ranks}, 1));
    for (const ir::Program& program : *programs)
      for (const ir::Instruction& at : program.instructions)
        if (cost::is_local(program, at)) keys.insert(cost::op_key(program, at));
  }
  std::optional<double> compute_ms(std::string_view key) const override {
    return keys.contains(key) ? CostsOfMixes::compute_ms(key) : std::nullopt;
  }
};

struct Mixed {
  ir::Plan plan;
  planner::PlanReport report;
  const planner::PolicyResult& of(std::string_view policy) const {
    const auto found = std::ranges::find(report.policies, policy, &planner::PolicyResult::policy);
    REQUIRE(found != report.policies.end());
    return *found;
  }
  double step_ms(std::string_view policy) const { return of(policy).timeline.makespan; }
};

Mixed planned(const config::Config& config, int ranks, bool compare = true) {
  const CostsOfMixes costs(config);
  Mixed mixed;
  auto plan = test::good(planner::plan_step({config, ranks}, {.costs = &costs, .compare = compare}, &mixed.report));
  mixed.plan = *std::move(plan);
  return mixed;
}

config::Config with_rings(const ir::Mesh& mesh) {
  config::Config config = test::config_on(mesh);
  config.train.sequence_parallel = true;
  config.overlap.policy = "lancet";
  config.overlap.memory_factor = 1.05;
  return config;
}

// One MoE layer whose experts are most of the step.
config::Config one_layer() {
  config::Config config = test::config_on(test::mesh_of(1, 4, 1));
  config.model.n_layer = 1;
  config.model.moe_layer_freq = 1;
  config.overlap.policy = "lancet";
  config.overlap.memory_factor = 1.05;
  return config;
}

int count_of(const ir::Plan& plan, std::string_view op) {
  return int(std::ranges::count(plan.program.instructions, op, &ir::Instruction::op));
}

// The cuts that a plan has, by the ops and attributes that only they leave in it. Pairs of micro batches leave none.
std::set<std::string_view> cuts_of(const ir::Plan& plan) {
  std::set<std::string_view> cuts;
  for (const ir::Instruction& at : plan.program.instructions) {
    if (at.op == "split_capacity") cuts.insert("capacity");
    if (at.op == "split_peers") cuts.insert(at.attributes.has("host") ? "source_rows" : "peers");
    if (at.op == "permute_shards") cuts.insert("ring_shards");
    if (at.op == "attention" && at.attributes.has("parts")) cuts.insert("batch");
    if (at.op.starts_with("expert_linear") && at.attributes.has("columns")) cuts.insert("columns");
  }
  return cuts;
}

test::Ran trained(const config::Config& config, int ranks, int steps) {
  const CostsOfMixes costs(config);
  return test::run_of(config, ranks, steps, {.costs = &costs, .inspect = true});
}

// Losses, and of every rank all experts, slots and drops. The plan that runs has the cuts that the planned one has.
void check_training(config::Config config, int ranks, const ir::Plan& planned) {
  const test::Ran found = trained(config, ranks, 5);
  CHECK(found.policy() == "lancet");
  CHECK((count_of(found.plan, "permute_shards") > 0) == (count_of(planned, "permute_shards") > 0));
  CHECK((schedule::most_parts(found.plan.program) > 1) == (schedule::most_parts(planned.program) > 1));
  config.overlap.policy = "sequential";
  const test::Ran expected = trained(config, ranks, 5);
  for (std::size_t i = 0; i < expected.records.size(); ++i) {
    CHECK(found.records[i].loss == Approx(expected.records[i].loss).epsilon(1e-6));
    CHECK(found.records[i].drop_pct.value() == expected.records[i].drop_pct.value());
  }
  for (int rank = 0; rank < ranks; ++rank) {
    INFO("rank " << rank);
    REQUIRE(expected.routes[std::size_t(rank)].size() >= 5);
    CHECK(found.routes[std::size_t(rank)] == expected.routes[std::size_t(rank)]);
  }
}

void check_memory(const Mixed& mixed, const config::Config& config) {
  CHECK(double(mixed.plan.arena_bytes) <= config.overlap.memory_factor * double(mixed.of("sequential").arena_bytes));
}

// The plan is one of the config, and so is what its file gives.
void check_file(const ir::Plan& plan, const config::Config& config, int ranks) {
  const test::TemporaryFolder folder;
  const std::string text = ir::print(plan), file = folder / "plan.ir";
  std::ofstream(file) << text;
  const auto read = test::good(planner::read_plan(file, {config, ranks}));
  CHECK(ir::print(*read) == text);
}

}  // namespace

TEST_CASE("lancet: rings in a list schedule beat rings that take turns, and the schedule without rings") {
  const ir::Mesh mesh = GENERATE(test::mesh_of(1, 1, 2), test::mesh_of(1, 2, 2));
  config::Config config = with_rings(mesh);
  config.overlap.max_parts = 1;  // parts of the batch, which are better here on two ranks
  const Mixed mixed = planned(config, mesh.ranks());
  INFO(to_string(mesh) << ": " << mixed.of("lancet").how << "; " << mixed.step_ms("lancet") << " ms, sequential "
                       << mixed.step_ms("sequential") << ", collective_matmul " << mixed.step_ms("collective_matmul")
                       << ", dw " << mixed.step_ms("dw"));
  CHECK(mixed.report.chosen == "lancet");
  CHECK(mixed.of("lancet").how.starts_with("rings beside products: "));
  CHECK(count_of(mixed.plan, "permute_shards") > 0);
  CHECK(mixed.step_ms("lancet") < 0.99 * mixed.step_ms("collective_matmul"));
  CHECK(mixed.step_ms("lancet") < 0.99 * mixed.step_ms("dw"));
  check_memory(mixed, config);
  check_file(mixed.plan, config, mesh.ranks());
  check_training(config, mesh.ranks(), mixed.plan);
}

// Windows of rings are not split once more, so a step with rings has no other parts than one without.
TEST_CASE("lancet: a profile has what rings and parts of layers together need") {
  const ir::Mesh mesh = GENERATE(test::mesh_of(1, 1, 2), test::mesh_of(1, 2, 2), test::mesh_of(2, 2, 2));
  config::Config config = with_rings(mesh);
  config.train.gradient_accumulation_steps = GENERATE(1, 2);
  // Parts of the batch may leave rings nothing to hide.
  config.overlap.max_parts = (mesh.ranks() == 4) == (config.train.gradient_accumulation_steps == 1) ? 1 : 8;
  const CostsOfMixes all(config);
  const CostsOfProfile measured(config, mesh.ranks());
  const auto plan = test::good(planner::plan_step({config, mesh.ranks()}, {.costs = &measured}));
  if (config.overlap.max_parts == 1) CHECK(count_of(*plan, "permute_shards") > 0);
  CHECK(ir::print(*plan) == ir::print(*planner::plan_step({config, mesh.ranks()}, {.costs = &all})));
}

TEST_CASE("lancet: rings are left out by the name of their pass") {
  const config::Config config = with_rings(test::mesh_of(1, 1, 2));
  const CostsOfMixes costs(config);
  const auto plan =
      test::good(planner::plan_step({config, 2}, {.costs = &costs, .skip = {"search_orders_with_rings"}}));
  CHECK(count_of(*plan, "permute_shards") == 0);
}

TEST_CASE("lancet: on a model of one MoE layer it beats every cut of it alone") {
  const config::Config config = one_layer();
  const Mixed mixed = planned(config, 4);
  INFO(mixed.report.why << "; " << mixed.of("lancet").how << "; " << mixed.step_ms("lancet") << " ms, sequential "
                        << mixed.step_ms("sequential") << ", comet " << mixed.step_ms("comet") << ", tutel "
                        << mixed.step_ms("tutel"));
  CHECK(mixed.report.chosen == "lancet");
  for (const std::string_view rival : {"comet", "tutel", "partition", "dw"})
    CHECK(mixed.step_ms("lancet") < 0.99 * mixed.step_ms(rival));
  check_memory(mixed, config);
  check_file(mixed.plan, config, 4);
  check_training(config, 4, mixed.plan);
}

TEST_CASE("plans have the cuts that the rows of their policies name, and no others") {
  std::set<std::string_view> seen;
  for (auto [config, ranks] : {std::pair{with_rings(test::mesh_of(1, 1, 2)), 2}, std::pair{one_layer(), 4}})
    for (const int parts : {0, 2})
      for (const planner::PolicyInfo& policy : planner::policies()) {
        if (policy.name == "auto") continue;  // it has the plan of another one
        config.overlap.policy = policy.name;
        config.overlap.parts = parts;
        const std::set<std::string_view> found = cuts_of(planned(config, ranks, false).plan);
        for (const std::string_view cut : found) {
          INFO(policy.name << ", overlap.parts " << parts << ", " << ranks << " ranks: " << cut);
          CHECK(std::ranges::count(policy.cuts, cut) == 1);
        }
        if (policy.name != "lancet") seen.insert(found.begin(), found.end());
      }
  CHECK(seen == std::set<std::string_view>{"batch", "capacity", "columns", "peers", "ring_shards", "source_rows"});
}

TEST_CASE("auto is not longer than any of the single ways, all of which it compares") {
  config::Config config = GENERATE(with_rings(test::mesh_of(1, 2, 2)), one_layer());
  const int micro_batches = GENERATE(1, 2, 4);
  config.overlap.policy = "auto";
  config.train.gradient_accumulation_steps = micro_batches;
  const Mixed mixed = planned(config, 4);
  CHECK(mixed.report.policies.size() == planner::compared_policies(micro_batches).size());
  const double chosen_ms = mixed.step_ms(mixed.report.chosen);
  for (const planner::PolicyResult& single : mixed.report.policies) {
    INFO(micro_batches << " micro batches: " << mixed.report.chosen << ", " << single.policy);
    CHECK(chosen_ms <= single.timeline.makespan * (1 + 1e-9));
  }
}

}  // namespace lancet
