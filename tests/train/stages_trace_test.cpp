// The trace of a step of pipeline stages.
#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>

#include "declared_costs.h"
#include "lancet/ir/micro_batches.h"
#include "text.h"
#include "train/meshes.h"

namespace lancet {

TEST_CASE("stages: a trace has the streams of each rank beside the prediction of its stage") {
  const test::DeclaredCosts costs;
  config::Config config = test::mesh_config(2);
  config.train.gradient_accumulation_steps = 4;
  config.train.pipeline_schedule = GENERATE(config::PipelineSchedule::zero_bubble, config::PipelineSchedule::searched);
  config.mesh.stage = 2;
  config.mesh.expert = 2;
  config.log.trace = 2;
  std::string trace;
  std::vector<ir::Plan> stages;
  const Status status = comm::run_inproc(4, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = 4, .costs = &costs}));
    for (int step = 0; step < 2; ++step) LANCET_TRY(trainer->step(step));
    LANCET_ASSIGN(const std::string text, trainer->trace());
    CHECK(text.empty() == (world.rank() != 0));
    if (world.rank() == 0) {
      trace = text;
      stages.assign(trainer->stage_plans().begin(), trainer->stage_plans().end());
    }
    return {};
  });
  if (!status.ok()) FAIL(status.error().message);
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
