// Predictions of pipeline stages on unlike hosts.
#include <catch2/catch.hpp>

#include "declared_hardware.h"
#include "lancet/run/planned_step.h"
#include "program.h"
#include "temporary_folder.h"

using namespace lancet;
using test::DeclaredMachine;

namespace {

config::Config on_hosts(const std::string& hardware, const std::string& blocks, const std::string& schedule = "1f1b") {
  const auto config = config::parse(
      test::small_config_text, "small.json",
      std::vector<std::string>{"device=emulated", "emulated.hardware=" + hardware, "model.n_layer=4", "mesh.stage=2",
                               "mesh.stage_blocks=" + blocks, "mesh.expert=1", "train.gradient_accumulation_steps=4",
                               "train.pipeline_schedule=" + schedule});
  if (!config.ok()) FAIL(config.error().message);
  return *config;
}

planner::StageReport times_of(const std::string& hardware, const std::string& blocks,
                              const std::string& schedule = "1f1b") {
  const auto planned = run::plan_offline(on_hosts(hardware, blocks, schedule), {.ranks = 2});
  if (!planned.ok()) FAIL(planned.error().message);
  return planned->stage_times;
}

}  // namespace

TEST_CASE("unlike stages: each takes the times of its own host, under every schedule") {
  const test::TemporaryFolder folder;
  const std::string slow = folder.write("slow.json", test::declared_hardware({.tflops = 0.02}));
  const std::string fast = folder.write("fast.json", test::declared_hardware({.tflops = 0.08}));
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
  const std::string narrow = folder.write("narrow.json", test::declared_hardware({.network = 0.05}));
  const std::string wide = folder.write("wide.json", test::declared_hardware({.network = 1}));
  const double all_narrow = times_of(narrow, "[2,2]").makespan, all_wide = times_of(wide, "[2,2]").makespan;
  CHECK(all_narrow > 1.01 * all_wide);
  CHECK(times_of(narrow + ";" + wide, "[2,2]").makespan == Approx(all_narrow));
  CHECK(times_of(wide + ";" + narrow, "[2,2]").makespan == Approx(all_narrow));
}

TEST_CASE("unlike stages: each is held against the memory of its own host") {
  const test::TemporaryFolder folder;
  const std::string large = folder.write("large.json", test::declared_hardware({.memory_gib = 16}));
  const std::string small = folder.write("small.json", test::declared_hardware({.memory_gib = 1e-4}));
  const auto refused = run::plan_offline(on_hosts(large + ";" + small, "[3,1]"), {.ranks = 2});
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().message.find("MB of memory a rank of stage 1 (") != std::string::npos);
  CHECK(refused.error().message.ends_with("found 0 MB"));
}
