// Ranks with unlike numbers of experts train like ranks with as many on each, and like one rank.
#include <catch2/catch.hpp>
#include <filesystem>

#include "declared_costs.h"
#include "declared_hardware.h"
#include "in_memory.h"
#include "lancet/checkpoint/checkpoint.h"
#include "lancet/planner/planner.h"
#include "lancet/planning/plan_file.h"
#include "lancet/planning/planned_step.h"
#include "routers.h"
#include "temporary_folder.h"
#include "train/observed_steps.h"

namespace lancet {
namespace {

using test::check_records;
using test::losses_of_run;
using test::Records;
using Counts = std::vector<std::int64_t>;

constexpr int all_experts = 8;

// Eight experts on a mesh; counts: of each rank along `expert`, {}: as many on each.
config::Config spread(const mesh::Mesh& mesh, const Counts& counts) {
  config::Config config = test::config_on(mesh);
  config.model.num_local_experts = all_experts;
  config.mesh.expert_counts = counts;
  config.mesh.stage = mesh[mesh::Axis::stage];
  return config;
}

Records steps_of(const config::Config& config, int ranks, int steps) {
  const test::DeclaredCosts costs;
  return test::run_steps(config, ranks, steps, {}, &costs);
}

const mesh::Mesh two = test::mesh_of(1, 2, 1);

}  // namespace

TEST_CASE("uneven experts: twenty steps of every policy are those of as many experts on each rank, and of one rank") {
  const Records alone = steps_of(spread({}, {}), 1, 20), even = steps_of(spread(two, {}), 2, 20);
  CHECK(alone[0].drop_pct.value() > 0);
  check_records(even, alone, 1e-5);
  config::Config config = spread(two, {6, 2});
  for (const auto& [policy, what, cuts] : planner::policies()) {
    INFO(policy);
    config.overlap.policy = policy;
    const Records found = steps_of(config, 2, 20);
    check_records(found, even, 1e-5);
    check_records(found, alone, 1e-5);
  }
}

TEST_CASE("uneven experts: any mesh, also with ZeRO-1, bf16 and micro batches") {
  struct Case {
    mesh::Mesh mesh;
    Counts counts;
    int zero = 0;
  };
  const Records alone = steps_of(spread({}, {}), 1, 20);
  for (const auto& [mesh, counts, zero] :
       {Case{test::mesh_of(2, 2, 1), {1, 7}}, Case{test::mesh_of(2, 2, 1), {5, 3}, 1},
        Case{test::mesh_of(1, 2, 2), {6, 2}}, Case{{{2, 1, 2, 1}}, {3, 5}}, Case{test::mesh_of(1, 4, 1), {1, 4, 2, 1}},
        Case{two, {4, 4}}}) {
    INFO(to_string(mesh) << ", first rank " << counts[0] << ", train.zero " << zero);
    config::Config config = spread(mesh, counts);
    config.train.zero = zero;
    check_records(steps_of(config, mesh.ranks(), 20), alone, 1e-5);
  }
  config::Config even = spread(two, {}), uneven = spread(two, {7, 1});
  for (config::Config* config : {&even, &uneven}) {
    config->train.dtype = DType::bf16;
    config->train.gradient_accumulation_steps = 2;
    config->train.weight_decay = 0.5;
  }
  check_records(steps_of(uneven, 2, 10), steps_of(even, 2, 10), 1e-5);
}

TEST_CASE("uneven experts: every router, also one that drops nothing, trains like one rank") {
  config::Config alone = spread({}, {}), config = spread(two, {2, 6});
  const test::Route route = GENERATE(from_range(test::routes));
  for (config::Config* each : {&alone, &config}) route.set(each->model);
  INFO(name(route.router));
  check_records(steps_of(config, 2, 6), steps_of(alone, 1, 6), 1e-5);
  if (alone.model.experts_choose()) return;
  for (config::Config* each : {&alone, &config}) {
    each->model.capacity_factor.reset();
    each->model.dropless_imbalance = 1;  // several rounds
  }
  check_records(steps_of(config, 2, 6), steps_of(alone, 1, 6), 1e-5);
}

TEST_CASE("uneven experts: each token gets the expert and the slot that it gets with as many on each rank") {
  const auto routes_of = [](const Counts& counts) {
    return test::observe_steps(spread(two, counts), 2, 5, [](train::Trainer&, int) { return Status(); });
  };
  const auto even = routes_of({}), uneven = routes_of({6, 2});
  for (std::size_t step = 0; step < even.size(); ++step)
    for (std::size_t rank = 0; rank < 2; ++rank) {
      INFO("step " << step << ", rank " << rank);
      REQUIRE(even[step][rank].routes.size() == 2);
      for (const auto& [layer, route] : even[step][rank].routes) {
        const test::LayerRoute& found = uneven[step][rank].routes.at(layer);
        CHECK(found.experts() == all_experts);
        CHECK(found.expert == route.expert);
        CHECK(found.slot == route.slot);
        CHECK(found.filled == route.filled);
      }
    }
}

TEST_CASE("uneven experts: a rank holds its own experts, and padding stays zero") {
  config::Config config = spread(two, {6, 2});
  config.train.weight_decay = 0.5;
  const std::string name = "h.0.moe.experts.c_fc.weight";
  const auto initial = test::train_and_look(config, 2, 0), trained = test::train_and_look(config, 2, 5);
  const std::vector<std::byte> whole = test::train_and_look(spread({}, {}), 1, 0)[0].at(name);
  const auto each = std::ptrdiff_t(whole.size()) / all_experts;
  const std::vector<std::byte>&first = initial[0].at(name), &second = initial[1].at(name);
  REQUIRE(std::ssize(first) == 6 * each);
  REQUIRE(std::ssize(second) == 6 * each);
  CHECK(std::equal(first.begin(), first.end(), whole.begin()));
  CHECK(std::equal(second.begin(), second.begin() + 2 * each, whole.begin() + 6 * each));
  for (const auto& [tensor, bytes] : trained[1]) {
    if (tensor.find(".experts.") == std::string::npos) continue;
    INFO(tensor);
    const auto own = bytes.begin() + std::ptrdiff_t(bytes.size()) / 3;
    CHECK(std::any_of(bytes.begin(), own, [](std::byte x) { return x != std::byte{0}; }));
    CHECK(std::all_of(own, bytes.end(), [](std::byte x) { return x == std::byte{0}; }));
  }
}

TEST_CASE("uneven experts: a run resumes bit for bit, and moves between splits of the experts") {
  const test::InMemory place;
  const test::TemporaryFolder folder;
  const auto config_of = [](const Counts& counts) {
    config::Config config = spread(two, counts);
    config.train.save_interval = 100;
    return config;
  };
  const auto tensors_in = [](const std::string& run) {
    const auto opened =
        checkpoint::Checkpoint::open(std::filesystem::path(run) / "checkpoints" / checkpoint::folder_name(6));
    REQUIRE(opened.ok());
    return opened->names();
  };
  const Counts uneven{6, 2}, splits[] = {{}, {1, 7}, {6, 2}};
  const auto whole = losses_of_run(config_of(uneven), folder / "whole", 2, 0);
  REQUIRE(whole.size() == 6);
  losses_of_run(config_of({}), folder / "even", 2, 0);
  CHECK(tensors_in(folder / "whole") == tensors_in(folder / "even"));
  for (const Counts& from : splits)
    for (const Counts& to : splits) {
      const std::string run = folder / std::to_string(10 * from.size() + to.size() + (from == uneven) + (to == uneven));
      INFO(run);
      std::filesystem::remove_all(run);
      losses_of_run(config_of(from), run, 2, 3);
      const auto moved = losses_of_run(config_of(to), run, 2, 0);
      REQUIRE(moved.size() == 6);
      if (from == uneven && to == uneven) CHECK(moved == whole);
      for (std::size_t i = 0; i < 6; ++i) CHECK(moved[i] == Approx(whole[i]).epsilon(1e-5));
    }
  const std::string run = folder / "one";  // to one rank and back
  losses_of_run(config_of(uneven), run, 2, 2);
  losses_of_run(spread({}, {}), run, 1, 4);
  const auto moved = losses_of_run(config_of({2, 6}), run, 2, 0);
  REQUIRE(moved.size() == 6);
  for (std::size_t i = 0; i < 6; ++i) CHECK(moved[i] == Approx(whole[i]).epsilon(1e-5));
}

TEST_CASE("uneven experts: a plan has the memory of the padding and the time of the rank with the most experts") {
  const test::TemporaryFolder folder;
  const std::string hardware = folder.write("declared.json", test::declared_hardware());
  const auto planned = [&](const Counts& counts) {
    auto plan = planning::plan_offline(spread(two, counts), {.ranks = 2, .hosts = 2, .hardware = hardware});
    if (!plan.ok()) FAIL(plan.error().message);
    return *std::move(plan);
  };
  const auto even = planned({}), same = planned({4, 4}), uneven = planned({6, 2}), more = planned({7, 1});
  const auto ms = [](const planning::PlannedStep& step) { return step.plan.header.real("predicted_ms"); };
  CHECK(ir::print(same.plan) == ir::print(even.plan));
  // Half as many more experts of parameters and two moments, at least.
  const std::int64_t expert = 4 * (2 * 32 * 128 + 32 + 128);
  CHECK(uneven.memory >= even.memory + 2 * 3 * expert);
  CHECK(more.memory >= uneven.memory + 3 * expert);
  CHECK(ms(uneven) > 1.01 * ms(even));
  CHECK(ms(more) > 1.01 * ms(uneven));
  const std::string file = folder.write("plan.ir", ir::print(uneven.plan));
  CHECK(planning::read_plan(file, spread(two, {6, 2}), 2).ok());
  for (const Counts& other : {Counts{2, 6}, Counts{}}) {
    const auto refused = planning::read_plan(file, spread(two, other), 2);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().message.find('\n') == std::string::npos);
  }
}

}  // namespace lancet
