// Settings without effect are logged if a user may expect an effect.
#include <catch2/catch.hpp>

#include "log_capture.h"
#include "temporary_folder.h"
#include "train/support.h"

namespace lancet {

TEST_CASE("master_weights=false in fp32 changes nothing, and the log says so once") {
  const auto losses = [](bool masters, DType dtype, int notes) {
    const test::TemporaryFolder folder;
    auto config = test::small_config();
    config.train.steps = 2;
    config.train.dtype = dtype;
    config.train.master_weights = masters;
    config.log.run_dir = folder / "run";
    const test::LogCapture log;
    const auto world = comm::make_self();
    REQUIRE(train::train(config, *world, {.local_ranks = 1}).ok());
    CHECK(log.count("train.master_weights changes nothing in fp32") == notes);
    std::vector<std::string> losses;
    std::istringstream lines(log.text());
    for (std::string line; std::getline(lines, line);)
      if (const auto at = line.find("| loss "); at != line.npos) losses.push_back(line.substr(at, 15));
    return losses;
  };
  const auto expected = losses(true, DType::f32, 0);
  CHECK(expected.size() == 2);
  CHECK(losses(false, DType::f32, 1) == expected);
  losses(false, DType::bf16, 0);
}

TEST_CASE("settings of stages, tensor parallelism and parts that change nothing are said once") {
  const test::TemporaryFolder folder;
  auto config = test::small_config();
  config.train.steps = 1;
  config.log.run_dir = folder / "run";
  config.overlap.policy = "sequential";
  const auto notes = [&](const char* text) {
    std::filesystem::remove_all(config.log.run_dir);
    const test::LogCapture log;
    const auto world = comm::make_self();
    REQUIRE(train::train(config, *world, {.local_ranks = 1}).ok());
    CHECK(log.count("changes nothing") == log.count(text));
    return log.count(text);
  };
  CHECK(notes("changes nothing") == 0);
  config.train.pipeline_schedule = config::PipelineSchedule::zero_bubble;
  CHECK(notes("train.pipeline_schedule changes nothing without stages (mesh.stage)") == 1);
  config.train.pipeline_schedule = {};
  config.train.sequence_parallel = true;
  CHECK(notes("train.sequence_parallel changes nothing without tensor parallelism (mesh.tensor)") == 1);
  config.train.sequence_parallel = false;
  config.overlap.parts = 2;
  CHECK(notes("overlap.parts changes nothing under overlap.policy \"sequential\"") == 1);
  config.overlap.parts = 0;
  config.overlap.replan = 2;
  CHECK(notes("overlap.replan changes nothing on one rank") == 1);
  config.overlap.replan = 0;
  config.emulated.hardware = "p3dn-v100";
  CHECK(notes("emulated.hardware changes nothing unless device is \"emulated\"") == 1);
}

TEST_CASE("a warm-up and a decay that do not fit the steps are said, with what happens") {
  const test::TemporaryFolder folder;
  auto config = test::small_config();
  config.train.steps = 6;
  config.log.run_dir = folder / "run";
  const auto warnings = [&](config::LrSchedule schedule, int warmup, int decay, const char* text) {
    std::filesystem::remove_all(config.log.run_dir);
    config.train.lr_schedule = schedule;
    config.train.lr_warmup_steps = warmup;
    config.train.lr_decay_steps = decay;
    const test::LogCapture log;
    const auto world = comm::make_self();
    REQUIRE(train::train(config, *world, {.local_ranks = 1}).ok());
    CHECK(log.count("expected at most train.steps") == log.count(text));
    return log.count(text);
  };
  using enum config::LrSchedule;
  CHECK(warnings(wsd, 4, 2, "train.steps = 6") == 0);
  CHECK(warnings(linear, 4, 4, "expected at most") == 0);
  const std::string both = "train.lr_warmup_steps + train.lr_decay_steps: expected at most train.steps = 6, found ";
  CHECK(warnings(wsd, 4, 4, (both + "4 + 4; the decay takes 2 steps").c_str()) == 1);
  CHECK(warnings(wsd, 0, 8, (both + "0 + 8; the decay takes 6 steps").c_str()) == 1);
  CHECK(warnings(cosine, 7, 0,
                 "train.lr_warmup_steps: expected at most train.steps = 6, found 7; the run ends before it reaches "
                 "train.lr") == 1);
}

}  // namespace lancet
