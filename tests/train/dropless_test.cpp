// Without a capacity factor no choice is dropped: training equals that with slots for all tokens, while buffers are as
// large as planned for a smaller imbalance, in as many rounds as that takes.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <iterator>
#include <map>

#include "declared_costs.h"
#include "host_accelerator.h"
#include "lancet/ir/program.h"
#include "lancet/planner/planner.h"
#include "lancet/run/rank_device.h"
#include "lancet/run/step_costs.h"
#include "lancet/schedule/step.h"
#include "routers.h"
#include "temporary_folder.h"
#include "train/meshes.h"

namespace lancet {
namespace {

// Buffers of this many even shares of the tokens' choices, and no drops. Below 1, which no config file may say, even
// routing takes several rounds as well.
config::Config dropless(config::Config config, double imbalance) {
  config.model.capacity_factor.reset();
  config.model.dropless_imbalance = imbalance;
  return config;
}

config::Config with_slots_for_all(config::Config config) {
  config.model.capacity_factor = double(*config.model.num_local_experts);
  return config;
}

test::Ran run_dropless(const config::Config& config, int ranks, int steps, const cost::Costs* costs = nullptr) {
  return test::run_of(config, ranks, steps, {.costs = costs, .inspect = true});
}

std::ptrdiff_t repeats(const test::Ran& ran) {
  return std::ranges::count_if(ran.plan.program.instructions, ir::is_repeat);
}

// Rounds add up a token's rows in another order. Updates carry the differences into the scores and gradients of later
// steps.
void check_dropless(const test::Records& found, const test::Records& expected, double epsilon = 1e-6) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    INFO("step " << i + 1);
    CHECK(found[i].loss == Approx(expected[i].loss).epsilon(epsilon));
    CHECK(found[i].aux_loss == Approx(expected[i].aux_loss).epsilon(10 * epsilon));
    CHECK(found[i].grad_norm == Approx(expected[i].grad_norm).epsilon(10 * epsilon));
    CHECK(found[i].drop_pct.value() == 0);
  }
}

// Those that could drop choices: experts that choose tokens need a capacity factor.
std::vector<test::Route> droppable_routes() {
  std::vector<test::Route> routes;
  std::ranges::copy_if(test::routes, std::back_inserter(routes), &test::Route::drops);
  return routes;
}

config::Config routed_config(const test::Route& route) {
  config::Config config = test::small_config();
  route.set(config.model);
  config.model.router_aux_loss_coef = 0.02;
  return config;
}

// All tokens choose expert 0 by far: the router sees the same sum of features in each token.
void send_all_to_one_expert(train::Trainer& trainer) {
  for (const auto& [name, tensor] : trainer.store().all()) {
    const bool gate = name.ends_with("moe.gate.weight"), bias = name.ends_with("ln_2.bias");
    if (!gate && !bias) continue;
    auto* values = tensor.memory.as<float>();
    const std::int64_t n = tensor.type.shape.elements(), width = tensor.type.shape.back();
    for (std::int64_t i = 0; i < n; ++i) values[i] = bias || i < width ? 1.f : 0.f;
  }
}

// Eight blocks, of which four are MoE layers: no other weight gradients are split by parts than those of further
// rounds.
config::Config with_parts(int ranks) {
  config::Config config = test::mesh_config(ranks);
  config.model.n_layer = 8;
  config.model.router = config::Router::top_k;
  config.model.num_experts_per_tok = 2;
  config.train.micro_batch_size = 16 / ranks;
  config.train.clip_grad = 0;
  config.mesh.expert = ranks;
  config.overlap.memory_factor = 10;
  return dropless(config, 0.9);
}

// Of the slots that the gates gave in the first step: by layer, the windows that each part and those before it take.
std::vector<std::vector<int>> windows_of_parts(const test::Ran& ran, const config::Config& config, int parts) {
  const auto rounds = std::ranges::find_if(ran.plan.program.instructions, ir::is_repeat);
  const std::int64_t slots = rounds->body.front().attributes.integer("slots");
  const std::int64_t choices = config.train.micro_batch_size * config.train.seq_len * config.model.num_experts_per_tok;
  std::vector<std::vector<int>> windows(4);
  for (std::size_t layer = 0; layer < windows.size(); ++layer)
    for (std::int64_t p = 0, most = 0; p < parts; ++p) {
      for (const auto& of_rank : ran.routes)
        for (std::int64_t i = choices * p / parts; i < choices * (p + 1) / parts; ++i)
          most = std::max<std::int64_t>(most, of_rank[layer][std::size_t(choices + i)]);
      windows[layer].push_back(int(most / slots) + 1);
    }
  return windows;
}

// Bit for bit, but for the experts' weights: a gradient of 1e-3 or less times lr, summed in another order.
void check_parameters(const test::Ran& found, const test::Ran& expected) {
  for (std::size_t rank = 0; rank < expected.parameters.size(); ++rank)
    for (const auto& [name, bytes] : expected.parameters[rank]) {
      INFO(name << " of rank " << rank);
      const std::vector<std::byte>& other = found.parameters[rank].at(name);
      if (name.find(".experts.") == name.npos) {
        CHECK((other == bytes));
        continue;
      }
      const auto *a = reinterpret_cast<const float*>(bytes.data()), *b = reinterpret_cast<const float*>(other.data());
      double apart = 0;
      for (std::size_t i = 0; i < bytes.size() / sizeof(float); ++i)
        apart = std::max(apart, std::abs(double(a[i]) - b[i]));
      CHECK(apart <= 1e-7);
    }
}

}  // namespace

TEST_CASE("each part of a layer has the rounds of its own windows") {
  const int ranks = GENERATE(2, 4);
  const test::DeclaredCosts costs;
  config::Config config = with_parts(ranks);
  config.train.optimizer = config::Optimizer::sgd;
  config.train.lr = 1e-2;
  const test::Ran one = run_dropless(config, ranks, 1, &costs);
  REQUIRE(one.policy() == "sequential");
  REQUIRE(repeats(one) == 8);
  const auto of_halves = windows_of_parts(one, config, 2);
  CHECK(std::ranges::count_if(of_halves, [](const auto& w) { return w[0] == 1 && w[1] > 1; }) > 0);
  CHECK(one.records[0].rounds.value() > 1);
  for (const char* policy : {"flowmoe", "lancet", "partition", "lancet_paper"})
    for (const int parts : {2, 4}) {
      config.overlap.policy = policy;
      config.overlap.parts = parts;
      const test::Ran found = run_dropless(config, ranks, 1, &costs);
      INFO(policy << " ran " << found.policy() << " in " << parts << " parts on " << ranks << " ranks");
      CHECK(schedule::most_parts(found.plan.program) == parts);
      if (found.policy() != "lancet_paper")
        CHECK(repeats(found) > 8);  // it splits these layers by capacity: one repeat
      CHECK(found.routes == one.routes);
      CHECK(found.records[0].rounds == one.records[0].rounds);
      CHECK(found.records[0].loss == Approx(one.records[0].loss).epsilon(1e-7));
      check_parameters(found, one);
    }
}

TEST_CASE("parts of a layer without drops train like one rank") {
  const test::DeclaredCosts costs;
  config::Config config = with_parts(1);
  const test::Records expected = test::run_steps(config, 1, 4, {}, &costs);
  const int ranks = GENERATE(2, 4);
  config = with_parts(ranks);
  for (const char* policy : {"flowmoe", "lancet"}) {
    config.overlap.policy = policy;
    config.overlap.parts = 4;
    INFO(policy << " on " << ranks << " ranks");
    check_dropless(test::run_steps(config, ranks, 4, {}, &costs), expected, 1e-5);
  }
}

TEST_CASE("repeats of parts read their own counts and take turns in memory") {
  const test::DeclaredCosts costs;
  config::Config config = with_parts(2);
  config.overlap.policy = "flowmoe";
  config.overlap.parts = 2;
  const ir::Plan plan = run_dropless(config, 2, 1, &costs).plan;
  std::map<std::string, std::vector<const ir::Instruction*>> parts;  // by layer and pass
  for (const ir::Instruction& at : plan.program.instructions)
    if (ir::is_repeat(at)) parts[at.label.substr(0, at.label.rfind('/')) + std::string(name(at.role))].push_back(&at);
  REQUIRE(parts.size() == 8);
  const ir::Program& program = plan.program;
  for (const auto& [layer, repeats] : parts) {
    INFO(layer);
    REQUIRE(repeats.size() == 2);
    CHECK(repeats[0]->operands[ir::repeat_count] != repeats[1]->operands[ir::repeat_count]);
    const ir::TensorId scratch[] = {repeats[0]->results[ir::repeat_scratch], repeats[1]->results[ir::repeat_scratch]};
    const std::int64_t begin[] = {plan.offsets[scratch[0].index()], plan.offsets[scratch[1].index()]};
    CHECK(begin[0] < begin[1] + ir::bytes(program.type(scratch[1])));
    CHECK(begin[1] < begin[0] + ir::bytes(program.type(scratch[0])));
    for (std::size_t i = 0; i < repeats[0]->body.size(); ++i) {
      const ir::Instruction &first = repeats[0]->body[i], &second = repeats[1]->body[i];
      CHECK(first.op == second.op);
      if (first.op == "all_to_all_counts") CHECK(second.operands.size() == 1);
      if (first.op == "expert_linear_dw") CHECK(program.region(first.results[0]) == program.region(second.results[0]));
    }
  }
}

TEST_CASE("nothing is dropped, whatever the routing") {
  const auto route = GENERATE(from_range(droppable_routes()));
  const int ranks = GENERATE(1, 2, 4);
  const config::Config config = routed_config(route);
  const test::Ran expected = run_dropless(with_slots_for_all(config), ranks, 4);
  for (const double imbalance : {0.4, 1.0, 2.0}) {
    const test::Ran found = run_dropless(dropless(config, imbalance), ranks, 4);
    INFO(ranks << " ranks, " << route.experts_per_tok << " experts a token, imbalance " << imbalance);
    check_dropless(found.records, expected.records);
    CHECK(found.routes == expected.routes);
    if (route.experts_per_tok * imbalance >= 4) continue;  // all choices fit in any case
    CHECK(repeats(found) == 4);                            // two layers, forward and backward
    CHECK(found.plan.arena_bytes < expected.plan.arena_bytes);
    CHECK(found.records[0].rounds.value() >= (imbalance < 1 ? 3 : 1));
  }
  CHECK_FALSE(expected.records[0].rounds);
  CHECK(repeats(expected) == 0);
}

TEST_CASE("all tokens of four ranks may go to one expert") {
  config::Config config = test::small_config();
  config.train.lr = 1e-4;
  const auto prepare = [](train::Trainer& trainer, int) { send_all_to_one_expert(trainer); };
  const test::Records expected = test::run_steps(with_slots_for_all(config), 4, 6, prepare);
  const test::Records found = test::run_steps(dropless(config, 0.5), 4, 6, prepare);
  check_dropless(found, expected);
  for (const run::StepRecord& record : found) {
    CHECK(record.load_max_over_mean.value() == 4);  // of 4 experts
    CHECK(record.rounds.value() == 8);              // of an eighth of the tokens each
  }
  CHECK(found.back().loss < found.front().loss);
}

// Each policy with two routers, so that each router meets several policies.
TEST_CASE("every policy trains without drops like sequential") {
  const std::vector<test::Route> routes = droppable_routes();
  const std::size_t router = GENERATE_COPY(range(std::size_t(0), routes.size()));
  config::Config config = dropless(routed_config(routes[router]), 0.5);
  const test::DeclaredCosts costs;
  const test::Ran expected = run_dropless(config, 2, 4, &costs);
  REQUIRE(expected.policy() == "sequential");
  CHECK(expected.records[0].rounds.value() > 1);
  const std::vector<planner::PolicyInfo> policies = planner::policies();
  for (std::size_t i = 1; i < policies.size(); ++i) {
    if (i % 4 != router % 4) continue;
    config.overlap.policy = policies[i].name;
    const test::Ran found = run_dropless(config, 2, 4, &costs);
    INFO(policies[i].name << " ran " << found.policy() << ", router " << router);
    check_dropless(found.records, expected.records);
    CHECK(found.routes == expected.routes);
    for (std::size_t at = 0; at < found.records.size(); ++at)
      CHECK(found.records[at].rounds == expected.records[at].rounds);
  }
}

TEST_CASE("meshes train without drops like one rank") {
  const config::Config one = with_slots_for_all(test::mesh_config(1));
  const test::Records expected = test::run_steps(one, 1, 4);
  const bool sequence_parallel = GENERATE(false, true);
  for (const ir::Mesh& mesh : test::meshes) {
    if (sequence_parallel && mesh[ir::Axis::tensor] == 1) continue;
    INFO(to_string(mesh) << (sequence_parallel ? ", sequence parallel" : ""));
    config::Config config = dropless(test::config_on(mesh), 0.6);
    config.train.sequence_parallel = sequence_parallel;
    check_dropless(test::run_steps(config, mesh.ranks(), 4), expected, 1e-5);
  }
}

TEST_CASE("rounds accumulate gradients of micro batches and update sharded states") {
  config::Config config = test::small_config();
  config.model.num_experts_per_tok = 2;
  config.model.router = config::Router::top_k;
  SECTION("two micro batches") { config.train.gradient_accumulation_steps = 2; }
  SECTION("ZeRO-1") { config.train.zero = 1; }
  SECTION("groups of sequences") { config.model.router_group_size = 2; }
  check_dropless(test::run_steps(dropless(config, 0.4), 2, 5), test::run_steps(with_slots_for_all(config), 2, 5));
}

TEST_CASE("a profile has the time of every op that the planner asks about rounds, on streams of a device as well") {
  config::Config config = dropless(test::small_config(), 1);
  config.overlap = GENERATE(config::Overlap{.policy = "lancet", .memory_factor = 10},
                            config::Overlap{.policy = "partition", .parts = 4, .memory_factor = 10});
  const int ranks = GENERATE(1, 2);
  std::optional<cost::Profile> profile;
  test::good(comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    test::HostAccelerator accelerator;
    run::ProfileRequest request{.local_ranks = ranks, .seconds = 0};
    if (ranks == 1) request.accelerator = &accelerator;
    LANCET_ASSIGN(const run::MeasuredStep step, run::measure_step(config, world, request));
    if (world.rank() == 0) profile = step.profile;
    return {};
  }));
  const auto loads = test::good(cost::Loads::read("load", "zipf:1", run::routed_model(config, {ranks, 1})));
  const auto costs = profile->under(std::make_shared<const cost::Loads>(*loads));
  const auto plan = test::good(planner::plan_step({config, ranks}, {.costs = costs.get(), .compare = true}));
  int parts = 0;
  for (const ir::Instruction& at : plan->program.instructions) {
    if (!ir::is_repeat(at)) continue;
    double of_round = 0;
    for (ir::Instruction part : at.body) {
      part.repeated = 1;
      const std::string key = cost::op_key(plan->program, part);
      INFO(key);
      const auto cost = test::good(cost::op_cost(*costs, plan->program, part));
      of_round += cost->ms;
      if (!cost::is_local(plan->program, part)) continue;
      REQUIRE(profile->ops.contains(key));
      CHECK(profile->ops.at(key).ms > 0);
      ++parts;
    }
    const bool is_last = at.attributes.integer("part", 0) + 1 == at.attributes.integer("parts", 1);
    if (is_last) CHECK(costs->rounds(at) > 0);  // the tokens of parts before it may fit in the first round
    CHECK(cost::op_cost(*costs, plan->program, at)->ms == Approx(costs->rounds(at) * of_round));
  }
  CHECK(parts > 10);
  profile->ops.erase(
      std::ranges::find_if(profile->ops, [](const auto& op) { return op.first.starts_with("window("); }));
  const Error lacking = test::refused(planner::plan_step({config, ranks}, {.costs = costs.get()}));
  CHECK(lacking.message.find("found none of window(") != std::string::npos);
}

TEST_CASE("a run without drops resumes bit for bit") {
  config::Config config = dropless(test::small_config(), 1);  // a resumed run reads it from a file
  config.train.steps = 6;
  config.train.save_buffer_mb = 8;
  const test::TemporaryFolder folder;
  const auto whole = test::losses_of_run(config, folder / "whole", 2, 0);
  test::losses_of_run(config, folder / "stopped", 2, 3);
  CHECK(test::losses_of_run(config, folder / "stopped", 2, 0) == whole);
}

}  // namespace lancet
