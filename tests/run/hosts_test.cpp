// Plans from measured costs of several hosts: they tell hosts apart, and price messages by the ranks that they reach.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include "declared_hardware.h"
#include "declared_profile.h"
#include "doubles/inproc.h"
#include "good.h"
#include "lancet/ir/plan.h"
#include "lancet/ops/peer_parts.h"
#include "lancet/planner/planner.h"
#include "lancet/run/planned_step.h"
#include "program.h"
#include "small_model.h"
#include "temporary_folder.h"

namespace lancet {
namespace {

// Experts on all ranks.
config::Config experts_on(int ranks) {
  config::Config config;
  config.model = test::small_model();
  config.model.num_local_experts = ranks;
  config.train.micro_batch_size = 4;
  config.train.seq_len = 16;
  config.train.clip_grad = 0;
  return config;
}

// Rings of four ranks.
config::Config tensor_parallel() {
  config::Config config = experts_on(4);
  config.model.moe_layer_freq = 0;
  config.model.num_local_experts.reset();
  config.mesh.tensor = 4;
  config.model.n_head = 4;
  config.train.sequence_parallel = true;
  return config;
}

test::DeclaredCosts network_of(double mb_per_s, double latency_ms) {
  test::DeclaredCosts costs;
  costs.network_mb_per_s = mb_per_s;
  costs.latency_ms = latency_ms;
  return costs;
}

run::PlannedStep planned_on(const config::Config& config, const cost::Profile& profile) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "costs.json";
  REQUIRE(cost::write_profile(path, profile).ok());
  const cost::Cluster& cluster = profile.machine.cluster;
  auto planned =
      test::good(run::plan_offline(config, {.ranks = cluster.ranks, .hosts = cluster.hosts, .profile = path}));
  REQUIRE(ir::verify(planned->plan).ok());
  return *std::move(planned);
}

// The predicted cost of each instruction.
std::vector<cost::OpCost> costs_of(const cost::Costs& costs, const ir::Plan& plan) {
  auto op_costs = test::good(cost::op_costs(costs, plan.program));
  return *std::move(op_costs);
}

}  // namespace

TEST_CASE("hosts: every policy plans from costs measured on 1, 2, 4 and 8 hosts") {
  const int hosts = GENERATE(1, 2, 4, 8);
  INFO(hosts);
  config::Config config = experts_on(8);
  config.overlap.policy = "auto";
  const cost::Profile profile =
      test::declared_profile(config, test::declared_machine(8, hosts), network_of(2, 0.05), 0.5);
  CHECK(profile.network.messages.contains("on_host") == (hosts == 2 || hosts == 4));
  const run::PlannedStep step = planned_on(config, profile);
  std::vector<std::string> found;
  for (const planner::PolicyResult& result : step.report.policies) {
    INFO(result.policy);
    CHECK(result.timeline.makespan > 0);
    found.push_back(result.policy);
  }
  for (const std::string_view policy : planner::compared_policies()) {
    INFO(policy);
    CHECK(std::ranges::find(found, policy) != found.end());
  }
  config.overlap.policy = "lancet_paper";
  CHECK(planned_on(config, profile).report.chosen.size() > 0);
}

TEST_CASE("hosts: comet sends the tile of the own host first, at the measured time of messages within it") {
  config::Config config = experts_on(4);
  config.overlap.policy = "comet";
  test::DeclaredCosts costs = network_of(2, 0.05);
  costs.elements_per_ms = 400;  // computation takes as long as messages
  const cost::Profile profile = test::declared_profile(config, test::declared_machine(4, 2), costs, 0.5);
  const run::PlannedStep step = planned_on(config, profile);
  REQUIRE(step.report.chosen == "comet");
  const std::vector<cost::OpCost> op_costs = costs_of(step.profile, step.plan);
  const auto loaded = step.profile.under(test::loads_of_fullest(1.5));
  const std::vector<cost::OpCost> under_load = costs_of(*loaded, step.plan);
  int own = 0, near = 0, far = 0;
  std::int64_t before = 0;  // the part of the all-to-all before
  const std::vector<ir::Instruction>& all = step.plan.program.instructions;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (cost::reached(all[i]) < 0) continue;
    const double bytes = cost::bytes_sent(step.plan.program, all[i]);
    const std::int64_t part = all[i].attributes.integer("part"), peers = cost::reached(all[i]);
    INFO(all[i].label << " part " << part);
    CHECK(all[i].attributes.integer("near") == (part < 2));
    CHECK((part == 0 || part == before + 1));
    before = part;
    own += part == 0, near += part == 1, far += part > 1;
    if (part == 0) CHECK(peers == 0);
    if (part == 1) {
      CHECK(peers == 1);
      CHECK(op_costs[i].ms == Approx(cost::interpolate(profile.network.messages.at("on_host"), bytes)));
      CHECK(under_load[i].ms == Approx(cost::interpolate(profile.network.messages.at("on_host"), 1.5 * bytes)));
    }
    // The all-to-all that sends as many bytes to the other host's two ranks, of three others.
    if (part > 1) CHECK(op_costs[i].ms == Approx(profile.all_to_all_ms(bytes * 3 / 2)));
  }
  CHECK(own > 0);
  CHECK(near == own);
  CHECK(far >= own);
}

TEST_CASE("hosts: a step of a ring takes the measured time of a message to its neighbour") {
  config::Config config = tensor_parallel();
  config.overlap.policy = "collective_matmul";
  const cost::Profile profile =
      test::declared_profile(config, test::declared_machine(4, 2), network_of(20, 0.001), 0.25);
  CHECK(profile.network.messages.contains("neighbour 1"));
  CHECK(profile.network.messages.contains("neighbour 2"));
  const run::PlannedStep step = planned_on(config, profile);
  REQUIRE(step.report.chosen == "collective_matmul");
  const std::vector<cost::OpCost> op_costs = costs_of(step.profile, step.plan);
  int steps = 0;
  const std::vector<ir::Instruction>& all = step.plan.program.instructions;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!ops::is_ring_step(all[i])) continue;
    ++steps;
    const auto shift = all[i].attributes.integer(ops::ring_shift);
    const double bytes = cost::bytes_sent(step.plan.program, all[i]);
    const auto& points = profile.network.messages.at(fmt::format("neighbour {}", shift));
    CHECK(op_costs[i].ms == Approx(cost::interpolate(points, bytes)));
    CHECK(op_costs[i].ms == Approx(profile.all_to_all_ms(bytes) / 4));
  }
  CHECK(steps > 0);
}

TEST_CASE("hosts: comet does not tell hosts apart that have unlike numbers of a group's ranks") {
  config::Config config = experts_on(6);
  config.mesh.expert = 6;
  config.mesh.data = 2;
  config.overlap.policy = "comet";
  test::DeclaredCosts costs = network_of(2, 0.05);
  costs.elements_per_ms = 400;
  const int hosts = GENERATE(3, 4);  // of four ranks, a group has four and two; of three ranks, three and three
  const cost::Profile profile = test::declared_profile(config, test::declared_machine(12, hosts), costs, 0.5);
  CHECK(profile.network.groups.at("expert 6").messages.contains("on_host") == (hosts == 4));
  const run::PlannedStep step = planned_on(config, profile);
  REQUIRE(step.report.chosen == "comet");
  bool near = false;
  for (const ir::Instruction& instruction : step.plan.program.instructions)
    near |= cost::reached(instruction) > 0 && instruction.attributes.integer("near", 0) != 0;
  CHECK(near == (hosts == 4));
}

TEST_CASE("hosts: the profiler measures no messages within hosts that have unlike numbers of ranks") {
  const test::TemporaryFolder folder;
  const std::vector<int> local_ranks{2, 2, 1, 1};
  const int ranks = int(local_ranks.size());
  config::Config config = experts_on(ranks);
  config.overlap.max_parts = 2;  // fewer shapes to measure
  config.overlap.policy = "lancet";
  config.overlap.profile = folder / "costs.json";
  cost::Profile measured;
  test::good(comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    const int on_host = local_ranks[std::size_t(world.rank())];
    LANCET_ASSIGN(const int hosts, run::agreed_hosts(world, on_host));
    if (hosts != 1) return internal_error("expected hosts that are not told apart");
    LANCET_ASSIGN(const auto step, run::measure_step(config, world, {.local_ranks = on_host, .seconds = 0}));
    if (world.rank() == 0) measured = step.profile;
    return {};
  }));
  CHECK(measured.machine.cluster.hosts == 2);
  CHECK(measured.ranks_on_host({}) == 1);
  CHECK(measured.network.measured());
  CHECK(measured.network.messages.empty());
}

TEST_CASE("hosts: a file without the times of messages to some ranks is read, and planning names what it lacks") {
  const test::TemporaryFolder folder;
  for (const bool rings : {false, true}) {
    config::Config config = rings ? tensor_parallel() : experts_on(4);
    config.overlap.policy = "lancet";
    cost::Profile profile = test::declared_profile(config, test::declared_machine(4, 2));
    profile.network.messages.clear();
    const std::string path = folder / "costs.json";
    REQUIRE(cost::write_profile(path, profile).ok());
    for (const char* hardware : {"", "ethernet-10g-cpu"}) {
      const Error refused =
          test::refused(run::plan_offline(config, {.ranks = 4, .hosts = 2, .profile = path, .hardware = hardware}));
      CHECK(refused.code == ExitCode::config);
      INFO(refused.message);
      CHECK(refused.message.find(rings ? "found none of messages 'neighbour 1' over all ranks"
                                       : "found none of messages 'on_host' over all ranks") != std::string::npos);
      CHECK(refused.message.find("with lancet profile") != std::string::npos);
    }
  }
}

TEST_CASE("hosts: the profiler measures messages to some ranks where plans have them, and adds them to an old file") {
  const test::TemporaryFolder folder;
  const bool rings = GENERATE(false, true);
  config::Config config = rings ? tensor_parallel() : experts_on(4);
  config.overlap.policy = "lancet";
  config.overlap.max_parts = 2;  // fewer shapes to measure
  config.overlap.profile = folder / "costs.json";
  using Renew = run::ProfileRequest::Renew;
  const auto measure = [&](Renew renew = Renew::nothing) {
    cost::Profile profile;
    test::good(comm::run_inproc(4, [&](comm::Communicator& world) -> Status {
      LANCET_ASSIGN(const auto step,
                    run::measure_step(config, world, {.local_ranks = 2, .renew = renew, .seconds = 0}));
      if (world.rank() == 0) profile = step.profile;
      return {};
    }));
    return profile;
  };
  const cost::Profile measured = measure();
  std::vector<std::string> reaches;
  for (const auto& [reach, points] : measured.network.messages) {
    reaches.push_back(reach);
    REQUIRE(points.size() >= 3);
    CHECK(points[0].bytes == 1024);
    CHECK(points[0].ms > 0);
  }
  CHECK(reaches ==
        (rings ? std::vector<std::string>{"neighbour 1", "neighbour 2"} : std::vector<std::string>{"on_host"}));
  const run::PlanTarget target{.ranks = 4, .hosts = 2, .profile = config.overlap.profile};
  const auto planned = test::good(run::plan_offline(config, target));
  if (rings) return;  // what follows does not depend on what the messages are

  cost::Profile old = *cost::read_profile(config.overlap.profile);
  const std::vector<cost::Point> all_to_all = old.network.all_to_all;
  old.network.messages.clear();
  REQUIRE(cost::write_profile(config.overlap.profile, old).ok());
  CHECK_FALSE(run::plan_offline(config, target).ok());
  const cost::Profile again = measure();
  CHECK(again.network.all_to_all == all_to_all);
  CHECK(again.network.messages.size() == reaches.size());
  CHECK(cost::read_profile(config.overlap.profile)->network.messages == again.network.messages);

  // Communication that is measured again replaces all that the file holds.
  old.network.messages = {{"neighbour 3", {{1024, 777}}}};
  old.network.groups["data 2"] = {{{1024, 777}}, {{1024, 777}}};
  REQUIRE(cost::write_profile(config.overlap.profile, old).ok());
  const cost::NetworkTimes renewed = measure(Renew::communication).network;
  CHECK(renewed.messages.size() == reaches.size());
  CHECK_FALSE(renewed.messages.contains("neighbour 3"));
  CHECK(cost::read_profile(config.overlap.profile)->network.messages == renewed.messages);
  CHECK(cost::read_profile(config.overlap.profile)->network.groups.empty());
}

// Predictions of pipeline stages on unlike hosts.

using test::DeclaredMachine;

namespace {

config::Config on_hosts(const std::string& hardware, const std::string& blocks, const std::string& schedule = "1f1b") {
  const auto config = test::good(config::parse(
      test::small_config_text, "small.json",
      std::vector<std::string>{"device=emulated", "emulated.hardware=" + hardware, "model.n_layer=4", "mesh.stage=2",
                               "mesh.stage_blocks=" + blocks, "mesh.expert=1", "train.gradient_accumulation_steps=4",
                               "train.pipeline_schedule=" + schedule}));
  return *config;
}

planner::StageReport times_of(const std::string& hardware, const std::string& blocks,
                              const std::string& schedule = "1f1b") {
  const auto planned = test::good(run::plan_offline(on_hosts(hardware, blocks, schedule), {.ranks = 2}));
  return planned->stage_times;
}

}  // namespace

TEST_CASE("unlike stages: each takes the times of its own host, under every schedule") {
  const test::TemporaryFolder folder;
  const std::string slow = folder.write("slow.json", test::declared_hardware({.core_share = 0, .tflops = 0.02}));
  const std::string fast = folder.write("fast.json", test::declared_hardware({.core_share = 0, .tflops = 0.08}));
  for (const char* schedule : {"1f1b", "zero_bubble", "searched"}) {
    INFO(schedule);
    const auto all_slow = times_of(slow, "[3,1]", schedule), all_fast = times_of(fast, "[3,1]", schedule);
    const auto unlike = times_of(fast + ";" + slow, "[3,1]", schedule);
    CHECK(unlike.compute[0] == Approx(all_fast.compute[0]));
    CHECK(unlike.compute[1] == Approx(all_slow.compute[1]));
    CHECK(unlike.makespan < times_of(fast + ";" + slow, "[1,3]", schedule).makespan);
    CHECK(unlike.makespan < all_slow.makespan);
    CHECK(unlike.least <= unlike.makespan);
  }
}

TEST_CASE("unlike stages: a message takes the slower link of its ends") {
  const test::TemporaryFolder folder;
  const std::string narrow = folder.write("narrow.json", test::declared_hardware({.network = 0.05, .core_share = 0}));
  const std::string wide = folder.write("wide.json", test::declared_hardware({.network = 1, .core_share = 0}));
  const double all_narrow = times_of(narrow, "[2,2]").makespan, all_wide = times_of(wide, "[2,2]").makespan;
  CHECK(all_narrow > 1.01 * all_wide);
  CHECK(times_of(narrow + ";" + wide, "[2,2]").makespan == Approx(all_narrow));
  CHECK(times_of(wide + ";" + narrow, "[2,2]").makespan == Approx(all_narrow));
}

TEST_CASE("unlike stages: each is held against the memory of its own host") {
  const test::TemporaryFolder folder;
  const std::string large = folder.write("large.json", test::declared_hardware({.memory_gib = 16}));
  const std::string small = folder.write("small.json", test::declared_hardware({.memory_gib = 1e-4}));
  const Error refused = test::refused(run::plan_offline(on_hosts(large + ";" + small, "[3,1]"), {.ranks = 2}));
  CHECK(refused.message.find("MB of memory a rank of stage 1 (") != std::string::npos);
  CHECK(refused.message.ends_with("found 0 MB"));
}

}  // namespace lancet
