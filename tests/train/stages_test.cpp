// Pipeline stages train as one rank does: losses, norms, updates of shared weights, resumes.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>

#include "declared_costs.h"
#include "good.h"
#include "host_accelerator.h"
#include "lancet/config/config.h"
#include "lancet/ir/micro_batches.h"
#include "lancet/planner/from_config.h"
#include "lancet/schedule/plan_memory.h"
#include "temporary_folder.h"
#include "text.h"
#include "train/meshes.h"

namespace lancet {
namespace {

using config::PipelineSchedule;
using ir::Axis;
using test::Records;

constexpr int staged_steps = 5;
constexpr PipelineSchedule schedules[] = {PipelineSchedule::one_forward_one_backward, PipelineSchedule::zero_bubble,
                                          PipelineSchedule::searched};

// A step of these micro batches, of one sequence for each rank that the batch is split over.
config::Config staged(int stages, int micro_batches, PipelineSchedule schedule = schedules[0]) {
  config::Config config = test::mesh_config(1);
  config.model.router_group_size = 1;
  config.train.micro_batch_size = 2;
  config.train.gradient_accumulation_steps = micro_batches;
  config.train.pipeline_schedule = schedule;
  config.mesh.stage = stages;
  return config;
}

Records steps_of(const config::Config& config, int ranks, int count) {
  const test::DeclaredCosts costs;
  return test::run_steps(config, ranks, count, {}, &costs);
}

// The same step on one rank.
config::Config alone(config::Config config, int batch_ranks = 1) {
  config.mesh = {};
  config.train.micro_batch_size *= batch_ranks;
  return config;
}

void check_losses(const Records& found, const Records& expected) { test::check_records(found, expected, 1e-5); }

}  // namespace

// Each two of a number of stages, a number of micro batches and a schedule meet.
TEST_CASE("stages: steps of any number of stages and micro batches are those of one rank") {
  std::size_t number = 0;
  for (const int micro_batches : {1, 2, 4, 8}) {
    const Records expected = steps_of(alone(staged(1, micro_batches)), 1, staged_steps);
    CHECK(expected[0].drop_pct.value() > 0);
    CHECK(expected[0].grad_norm > 1);
    for (const int stages : {2, 3, 4}) {
      const PipelineSchedule schedule = schedules[number++ % 3];
      INFO(stages << " stages, " << micro_batches << " micro batches, " << config::name(schedule));
      check_losses(steps_of(staged(stages, micro_batches, schedule), stages, staged_steps), expected);
    }
    ++number;
  }
}

TEST_CASE("stages: meshes with data, expert and tensor axes train as one rank") {
  struct Case {
    ir::Mesh mesh;
    int zero;
    PipelineSchedule schedule;
  };
  for (const auto& [mesh, zero, schedule] :
       {Case{{{2, 2, 1, 1}}, 0, schedules[2]}, Case{{{2, 1, 2, 1}}, 1, schedules[1]},
        Case{{{2, 1, 1, 2}}, 0, schedules[0]}, Case{{{3, 1, 2, 1}}, 0, schedules[2]},
        Case{{{2, 2, 2, 1}}, 1, schedules[0]}}) {
    const int shares = mesh.size(ir::batch_axes);
    config::Config config = staged(mesh[Axis::stage], 4, schedule);
    config.train.micro_batch_size = 8 / shares;
    config.train.zero = zero;
    config.mesh.data = mesh[Axis::data];
    config.mesh.expert = mesh[Axis::expert];
    config.mesh.tensor = mesh[Axis::tensor];
    INFO(to_string(mesh) << ", train.zero " << zero << ", " << config::name(schedule));
    check_losses(steps_of(config, mesh.ranks(), staged_steps), steps_of(alone(config, shares), 1, staged_steps));
  }
}

TEST_CASE("stages: interleaved runs of blocks train as one rank") {
  const auto interleaved = [](const ir::Mesh& mesh, int micro_batches) {
    config::Config config = staged(mesh[Axis::stage], micro_batches, PipelineSchedule::interleaved);
    config.model.n_layer = 8;
    config.train.micro_batch_size = 4 / mesh.size(ir::batch_axes);
    config.mesh.data = mesh[Axis::data];
    config.mesh.expert = mesh[Axis::expert];
    config.mesh.tensor = mesh[Axis::tensor];
    return config;
  };
  for (const int micro_batches : {1, 4})
    for (const int stages : {2, 3, 4}) {
      INFO(stages << " stages, " << micro_batches << " micro batches");
      const config::Config config = interleaved({{stages, 1, 1, 1}}, micro_batches);
      check_losses(steps_of(config, stages, staged_steps), steps_of(alone(config), 1, staged_steps));
    }
  for (const ir::Mesh& mesh : {ir::Mesh{{2, 2, 1, 1}}, {{2, 1, 2, 1}}, {{2, 1, 1, 2}}}) {
    INFO(to_string(mesh));
    config::Config config = interleaved(mesh, 4);
    config.train.zero = mesh[Axis::expert] > 1;
    config::Config whole = config;
    whole.mesh.stage = 1;
    check_losses(steps_of(config, 4, staged_steps), steps_of(whole, 2, staged_steps));
  }
}

// Every policy meets every schedule, with parts where it makes some. Parts of the batch split the sum of the gradient
// of the head's weight.
// Each policy under one schedule, `lancet` under all.
TEST_CASE("stages: policies train as without overlap, bit for bit where no sum is split") {
  std::size_t turn = 0;
  for (const PipelineSchedule schedule : {schedules[0], schedules[1], schedules[2], PipelineSchedule::interleaved}) {
    config::Config config = staged(2, 4, schedule);
    config.mesh.expert = 2;
    config.overlap.memory_factor = 10;
    const Records expected = steps_of(config, 4, 2);
    config::Config whole = config;
    whole.mesh.stage = 1;
    check_losses(expected, steps_of(whole, 2, 2));
    config.overlap.parts = 2;
    for (const planner::PolicyInfo& policy : planner::policies()) {
      if (turn++ % 4 != 0 && policy.name != "lancet") continue;
      INFO(policy.name << ", " << config::name(schedule));
      config.overlap.policy = policy.name;
      const Records found = steps_of(config, 4, 2);
      test::check_records(found, expected, 1e-6);
      if (std::ranges::count(policy.cuts, "batch") > 0) continue;
      for (std::size_t step = 0; step < found.size(); ++step) {
        CHECK(found[step].loss == expected[step].loss);
        CHECK(found[step].drop_pct == expected[step].drop_pct);
        CHECK(found[step].grad_norm == expected[step].grad_norm);
      }
    }
  }
}

TEST_CASE(
    "stages: layers that drop nothing train on stages, where a rank has all experts of a layer, and where two share") {
  config::Config config = staged(2, 2, schedules[GENERATE(0, 1, 2)]);
  config.model.capacity_factor.reset();
  config.model.dropless_imbalance = 1;  // further rounds for what is above
  const int ranks = GENERATE(2, 4);
  config.mesh.expert = ranks / 2;
  config::Config whole = config;
  whole.mesh.stage = 1;
  check_losses(steps_of(config, ranks, 6), steps_of(whole, ranks / 2, 6));
}

// The policy lists weight gradients of the parts late, past the receive of the other run of blocks.
TEST_CASE("stages: parts of layers that drop nothing train in interleaved runs of blocks") {
  config::Config config = staged(2, 4, PipelineSchedule::interleaved);
  config.model.n_layer = 4;
  config.model.capacity_factor.reset();
  config.model.dropless_imbalance = 1;
  config.mesh.expert = 2;
  config::Config whole = config;
  whole.mesh.stage = 1;
  config.overlap.policy = GENERATE("flowmoe", "lancet");
  config.overlap.parts = 2;
  config.overlap.memory_factor = 10;
  test::check_records(steps_of(config, 4, 3), steps_of(whole, 2, 3), 1e-5);
}

TEST_CASE("stages: many micro batches are one run of a plan, or several") {
  const int micro_batches = GENERATE(16, 65);  // five runs of 13
  const config::Config config = staged(3, micro_batches, PipelineSchedule::zero_bubble);
  check_losses(steps_of(config, 3, 3), steps_of(alone(config), 1, 3));
}

TEST_CASE("stages: no stage needs more memory under other schedules than the one that needs most under 1f1b") {
  const test::DeclaredCosts costs;
  const auto largest_rank = [&](PipelineSchedule schedule) {
    config::Config config = staged(4, 8, schedule);
    config.model.vocab_size = 4096;  // the gradients of the logits are large
    config.model.n_layer = 4;
    const auto plans = test::good(planner::plan_stages({config, 4}, {.costs = &costs}));
    std::int64_t most = 0;
    for (const ir::Plan& plan : *plans) most = std::max(most, schedule::plan_bytes(plan));
    return most;
  };
  for (const PipelineSchedule schedule : schedules) CHECK(largest_rank(schedule) <= largest_rank(schedules[0]));
}

TEST_CASE(
    "stages: zero bubble is predicted no slower than 1F1B, searched no slower than both, and none beats what no order "
    "goes below") {
  const test::DeclaredCosts costs;
  int listed = 0;
  for (const auto& [stages, experts] : {std::pair{2, 1}, {3, 1}, {4, 1}, {2, 2}, {4, 2}})
    for (const int micro_batches : {1, 4, 8}) {
      INFO(stages << " stages, " << experts << " places of experts, " << micro_batches << " micro batches");
      double best = std::numeric_limits<double>::infinity(), plain = 0;
      for (const PipelineSchedule schedule : schedules) {
        config::Config config = staged(stages, micro_batches, schedule);
        config.mesh.expert = experts;
        config.model.n_layer = 8;
        planner::StageReport report;
        const auto plans =
            test::good(planner::plan_stages({config, stages * experts}, {.costs = &costs}, nullptr, &report));
        CHECK(report.least > 0);
        CHECK(report.least <= report.makespan * (1 + 1e-9));
        if (schedule == PipelineSchedule::one_forward_one_backward) plain = report.makespan;
        if (schedule == PipelineSchedule::zero_bubble) CHECK(report.makespan <= plain * (1 + 1e-9));
        if (schedule == PipelineSchedule::searched) {
          CHECK(report.makespan <= best * (1 + 1e-9));
          listed += report.how == "searched: a list schedule of all stages";
        }
        best = std::min(best, report.makespan);
      }
    }
  CHECK(listed >= 5);
}

TEST_CASE("stages: more memory never makes a step longer, and overlap.memory_factor bounds beside a limit") {
  const test::DeclaredCosts costs;
  config::Config config = staged(2, 8, PipelineSchedule::searched);
  config.mesh.expert = 2;
  config.model.n_layer = 8;
  config.overlap.policy = "sequential";
  const planner::StepModel model(config, 4);
  planner::PlanRequest request = *test::good(model.request());
  request.costs = &costs;
  const auto planned = [&] {
    const auto plans = test::good(planner::make_stage_plans(model.forward, request));
    std::int64_t bytes = 0;
    for (const ir::Plan& plan : *plans) bytes = std::max(bytes, schedule::plan_bytes(plan));
    return std::pair(plans->front().header.real("predicted_ms"), bytes);
  };
  request.overlap.memory_factor = 1;
  request.memory_limit = std::int64_t{1} << 40;
  const std::int64_t largest = planned().second;
  request.overlap.memory_factor = 0;
  CHECK(planned().second > largest);
  double before = std::numeric_limits<double>::infinity();
  for (int percent = 100; percent <= 170; percent += 14) {
    INFO(percent << "% of " << largest);
    request.memory_limit = largest / 100 * percent + 100;
    const auto [ms, bytes] = planned();
    CHECK(bytes <= request.memory_limit);
    CHECK(ms <= before);
    before = ms;
  }
}

TEST_CASE("stages: the embedding of the first stage and the head's of the last stay equal to the bit") {
  for (const int stages : {2, 4}) {
    config::Config config = staged(stages, 2);
    config.train.dtype = GENERATE(DType::f32, DType::bf16);
    config.train.master_weights = config.train.dtype == DType::f32;
    std::vector<std::vector<std::byte>> copies(static_cast<std::size_t>(stages));
    test::good(comm::run_inproc(stages, [&](comm::Communicator& world) -> Status {
      LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = stages}));
      for (int step = 0; step < 5; ++step) LANCET_TRY(trainer->step(step));
      const auto rank = std::size_t(world.rank());
      const runtime::NamedTensor& tensor = trainer->store()["wte.weight"];
      CHECK(tensor.elsewhere == (rank > 0 && rank + 1 < copies.size()));
      if (tensor.elsewhere) return {};
      copies[rank].assign(tensor.memory.start, tensor.memory.start + ir::bytes(tensor.type));
      return {};
    }));
    CHECK(copies.front() == copies.back());
    CHECK(!copies.front().empty());
  }
}

TEST_CASE("stages: a run resumes bit for bit on its mesh, and on other meshes within rounding") {
  test::TemporaryFolder folder;
  config::Config config = staged(2, 4, PipelineSchedule::zero_bubble);
  config.mesh.data = 2;
  config.mesh.expert = 1;
  config.train.micro_batch_size = 1;
  config.train.steps = 6;
  config.train.save_interval = 3;
  const auto whole = test::losses_of_run(config, folder / "whole", 4, 0);
  const auto run = [&](const std::string& name) { return folder / name; };
  test::losses_of_run(config, run("stopped"), 4, 3);
  std::filesystem::copy(run("stopped"), run("elsewhere"), std::filesystem::copy_options::recursive);
  std::filesystem::copy(run("stopped"), run("longer"), std::filesystem::copy_options::recursive);
  CHECK(test::losses_of_run(config, run("stopped"), 4, 0) == whole);

  config::Config one = alone(config, 2);
  const auto on_one = test::losses_of_run(one, run("elsewhere"), 1, 5);
  REQUIRE(on_one.size() == 5);
  for (std::size_t i = 0; i < 5; ++i) CHECK(on_one[i] == Approx(whole[i]).epsilon(1e-5));
  config::Config back = config;  // from one rank to three stages
  back.mesh = {};
  back.mesh.stage = 3;
  back.train.micro_batch_size = 2;
  const auto on_three = test::losses_of_run(back, run("elsewhere"), 3, 0);
  REQUIRE(on_three.size() == 6);
  CHECK(on_three[5] == Approx(whole[5]).epsilon(1e-5));
}

TEST_CASE("stages: steps of any cut are those of one rank") {
  const Records expected = steps_of(alone(staged(1, 4)), 1, staged_steps);
  for (const std::vector<std::int64_t>& blocks :
       std::vector<std::vector<std::int64_t>>{{3, 1}, {1, 3}, {4, 0}, {1, 1, 2}, {2, 2, 0}})
    for (const PipelineSchedule schedule : schedules) {
      INFO(blocks[0] << " blocks of " << blocks.size() << " stages, " << config::name(schedule));
      config::Config config = staged(int(blocks.size()), 4, schedule);
      config.mesh.stage_blocks = blocks;
      check_losses(steps_of(config, int(blocks.size()), staged_steps), expected);
    }
}

TEST_CASE("stages: a run resumes bit for bit on its cut, and on another one within rounding") {
  test::TemporaryFolder folder;
  config::Config config = staged(2, 4, PipelineSchedule::zero_bubble);
  config.mesh.stage_blocks = {3, 1};
  config.train.steps = 6;
  config.train.save_interval = 3;
  const auto whole = test::losses_of_run(config, folder / "whole", 2, 0);
  REQUIRE(whole.size() == 6);
  test::losses_of_run(config, folder / "stopped", 2, 3);
  for (const auto& [name, blocks] : {std::pair("head", std::vector<std::int64_t>{4, 0}), {"balanced", {}}}) {
    std::filesystem::copy(folder / "stopped", folder / name, std::filesystem::copy_options::recursive);
    config::Config other = config;
    other.mesh.stage_blocks = blocks;
    const auto found = test::losses_of_run(other, folder / name, 2, 0);
    REQUIRE(found.size() == 6);
    for (std::size_t i = 0; i < 6; ++i) CHECK(found[i] == Approx(whole[i]).epsilon(1e-5));
  }
  CHECK(test::losses_of_run(config, folder / "stopped", 2, 0) == whole);
}

TEST_CASE("stages: a step that is not finite is skipped on all stages") {
  config::Config config = staged(3, 2);
  config.train.on_non_finite = config::OnNonFinite::skip;
  config.train.lr = 1e30;
  config.train.clip_grad = 0;
  const Records records = steps_of(config, 3, 4);
  CHECK_FALSE(records[0].skipped);
  CHECK(records.back().skipped);
}

TEST_CASE("stages: what stages are not built for is refused in one line") {
  const auto error = [](const std::function<void(config::Config&)>& change) {
    config::Config config = staged(2, 1);
    change(config);
    const Status status = config::check(config, 2);
    return status.ok() ? "" : status.error().message;
  };
  CHECK(error([](config::Config&) {}).empty());
  CHECK(error([](config::Config& c) { c.overlap.policy = "lancet"; }).empty());
  CHECK(error([](config::Config& c) { c.device = config::Device::cuda; }).empty());
  CHECK(error([](config::Config& c) { c.comm.transport = config::Transport::mirrored; }) ==
        "config: mesh.stage: expected 1 for comm.transport \"mirrored\", found 2");
  CHECK(
      error([](config::Config& c) {
        c.mesh.stage = 3;
        c.train.pipeline_schedule = PipelineSchedule::interleaved;
      }) ==
      "config: train.pipeline_schedule: expected at least 6 blocks of the model (model.n_layer) for \"interleaved\" on "
      "3 stages, found 4");
  CHECK(error([](config::Config& c) { c.mesh.stage = 5; }) ==
        "config: mesh.stage: expected at most 4, the number of blocks of the model (model.n_layer), found 5");
}

// The trace of a step of pipeline stages.

TEST_CASE("stages: a trace has the streams of each rank beside the prediction of its stage") {
  const test::DeclaredCosts costs;
  config::Config config = test::mesh_config(2);
  config.train.gradient_accumulation_steps = 4;
  config.train.pipeline_schedule = GENERATE(config::PipelineSchedule::zero_bubble, config::PipelineSchedule::searched);
  config.mesh.stage = 2;
  config.mesh.expert = 2;
  config.log.trace = 2;
  const bool on_device = GENERATE(false, true);
  std::string trace;
  std::vector<ir::Plan> stages;
  test::good(comm::run_inproc(4, [&](comm::Communicator& world) -> Status {
    test::HostAccelerator device;
    LANCET_ASSIGN(
        const auto trainer,
        train::Trainer::create(config, world,
                               {.local_ranks = 4, .costs = &costs, .accelerator = on_device ? &device : nullptr}));
    for (int step = 0; step < 2; ++step) LANCET_TRY(trainer->step(step));
    LANCET_ASSIGN(const std::string text, trainer->trace());
    CHECK(text.empty() == (world.rank() != 0));
    if (world.rank() == 0) {
      trace = text;
      stages.assign(trainer->stage_plans().begin(), trainer->stage_plans().end());
    }
    return {};
  }));
  REQUIRE(stages.size() == 2);
  CHECK(stages[0].program.instructions.size() != stages[1].program.instructions.size());

  std::map<int, std::size_t> events;
  std::map<int, std::string> names;
  std::map<int, int> sends;  // that took time
  const auto json = test::json_in(trace);
  for (const auto& event : json["traceEvents"]) {
    const int pid = event["pid"];
    if (event["name"] == "process_name") names[pid] = event["args"]["name"];
    if (event["ph"] != "X") continue;
    const std::size_t stage = std::size_t(pid < 4 ? pid / 2 : pid - 4), index = event["args"]["index"];
    ++events[pid];
    REQUIRE(index < stages[stage].program.instructions.size());
    const ir::Instruction& at = stages[stage].program.instructions[index];
    CHECK(event["name"] == ir::event_name(at));
    CHECK(event["tid"] == int(at.stream));
    sends[pid] += ir::between_stages(at.stream) && event["dur"].get<double>() > 0;
    if (pid < 4) continue;
    const ir::Interval& when = stages[stage].predicted[index];
    CHECK(event["ts"].get<double>() == Approx(1000 * when.start).margin(0.001));
    CHECK(event["dur"].get<double>() == Approx(1000 * (when.end - when.start)).margin(0.002));
  }
  const std::size_t first = stages[0].program.instructions.size(), last = stages[1].program.instructions.size();
  CHECK(events == std::map<int, std::size_t>{{0, first}, {1, first}, {2, last}, {3, last}, {4, first}, {5, last}});
  CHECK(names[2] == "measured, stage 1, rank 2");
  CHECK(names[5] == "predicted, stage 1");
  // Of each of four micro batches two values cross forwards and one gradient backwards.
  for (const auto& [pid, count] : sends) CHECK(count == 12);
}

}  // namespace lancet
