// The end of a run before its last step, on all ranks at once, and the steps that it has saved by then.
#include <array>
#include <catch2/catch.hpp>
#include <csignal>

#include "lancet/base/files.h"
#include "lancet/data/tokenizer.h"
#include "log_capture.h"
#include "temporary_folder.h"
#include "train/runs.h"

namespace lancet {
namespace {

namespace fs = std::filesystem;
using namespace test;

}  // namespace

TEST_CASE("a signal on one rank stops all") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  std::array<std::atomic<int>, 2> stop{};
  stop[1] = SIGTERM;
  Error error;
  REQUIRE(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
            const Status status =
                train::train(config, world, {.local_ranks = 2, .stop = &stop[std::size_t(world.rank())]});
            if (world.rank() == 0) error = status.error();
            return {};
          }).ok());
  CHECK(error.code == ExitCode::saved);
  CHECK(error.message.find("saved and stopped after step 1 of 6 (another rank's signal)") == 0);
  CHECK(manifest_in(folder / "run", 1).ranks == 2);
}

TEST_CASE("an evaluation is stopped at once on all ranks, and the run resumes from there") {
  const TemporaryFolder folder;
  auto config = config_with_files(folder, "whole");
  config.train.eval_interval = 3;
  const auto [done, questions] = run_until(config, 1000000);
  CHECK(done.code == ExitCode::done);
  CHECK(questions == 6 + 8 + 1 + 8);  // steps, batches, the end of the first evaluation
  config.log.run_dir = folder / "run";
  const int batch = GENERATE(1, 3, 8);
  SECTION("between two steps") {
    const test::LogCapture log;
    const auto [error, asked] = run_until(config, 3 + batch);
    CHECK(error.code == ExitCode::saved);
    CHECK(error.message.find("saved and stopped after step 3 of 6 (another rank's signal)") == 0);
    CHECK(asked <= 3 + batch + 1);
    CHECK(log.count("held-out loss") == 0);
    CHECK(manifest_in(folder / "run", 3).step == 3);
  }
  SECTION("at the end, with the last step saved already") {
    const test::LogCapture log;
    const auto [error, asked] = run_until(config, 6 + 9 + batch);
    CHECK(error.code == ExitCode::saved);
    CHECK(error.message.find("saved and stopped after step 6 of 6 (another rank's signal)") == 0);
    CHECK(log.count("step 3 | held-out loss") > 0);
    CHECK(log.count("step 6 | held-out loss") == 0);
  }
  REQUIRE(train_run(config, 2).code == ExitCode::done);
  CHECK(losses(folder / "run") == losses(folder / "whole"));
  REQUIRE(held_out_losses(folder / "whole").size() == 2);
  CHECK(held_out_losses(folder / "run") == held_out_losses(folder / "whole"));
}

TEST_CASE("the generation of the final text is stopped at once") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  config.train.sample_tokens = 10;
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  tokens.emplace_back(data::kEndOfText);
  const auto tokenizer = data::Tokenizer::make(tokens, {});
  REQUIRE(tokenizer.ok());
  REQUIRE(tokenizer->save(folder / "tok").ok());
  config.model.vocab_size = 257;
  config.data.tokenizer = folder / "tok";
  config.train.sample_prompt = "a";
  const test::LogCapture log;
  const auto [error, asked] = run_until(config, 6 + 4);
  CHECK(error.code == ExitCode::saved);
  CHECK(asked <= 6 + 4 + 1);
  CHECK(log.count("sample: ") == 0);
  REQUIRE(train_run(config, 2).code == ExitCode::done);
  CHECK(log.count("sample: ") > 0);
}

TEST_CASE("train.max_minutes ends a run, in evaluations, too") {
  const TemporaryFolder folder;
  auto config = config_with_files(folder, "run");
  config.train.max_minutes = 1e-9;
  CHECK(train_run(config, 1).message.find("saved and stopped after step 1 of 6 (train.max_minutes)") == 0);
  config.train.steps = 2;  // the last step ends the run, without another check of the clock
  const test::LogCapture log;
  CHECK(train_run(config, 1).message.find("saved and stopped after step 2 of 2 (train.max_minutes)") == 0);
  CHECK(log.count("held-out loss") == 0);
  CHECK(log.count("does not continue without") == 0);
  CHECK(train_run(config, 1).message.find("saved and stopped after step 2 of 2 (train.max_minutes)") == 0);
  CHECK(log.count("warning: step 2: the evaluation had not ended when the run was stopped, and the run does not "
                  "continue without it") == 1);
}

TEST_CASE("a run that resumes beyond its last step, or the step to stop at, reports it") {
  const TemporaryFolder folder;
  auto config = config_with_files(folder, "run");
  stop_after(config, 5, 1);
  config.train.steps = 3;
  {
    const test::LogCapture log;
    REQUIRE(train_run(config, 1).code == ExitCode::done);
    CHECK(log.count("nothing to do: 5 of 3 steps done; raise train.steps") == 1);
    CHECK(log.count("step 5 | held-out loss") == 1);
    CHECK(log.count("step 3 |") == 0);
  }
  config.train.steps = 5;
  {
    const test::LogCapture log;
    REQUIRE(train_run(config, 1).code == ExitCode::done);
    CHECK(log.count("nothing to do: 5 of 5 steps done; raise train.steps") == 1);
  }
  config.train.steps = 6;
  config.train.stop_after = GENERATE(4, 5);
  const test::LogCapture log;
  REQUIRE(train_run(config, 1).code == ExitCode::done);
  CHECK(log.count("nothing to do") == 0);
  CHECK(log.count("train.stop_after: the run resumes after step 5, so it does not stop after step " +
                  std::to_string(config.train.stop_after)) == 1);
  CHECK(losses(folder / "run").size() == 6);
}

TEST_CASE("without a save interval a run saves by the clock and at its end") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  config.train.save_interval = 0;
  config.train.save_minutes = config::Train().save_minutes;
  REQUIRE(config.train.saves());
  REQUIRE(train_run(config, 2).code == ExitCode::done);
  CHECK(checkpoint::steps_in(folder / "run/checkpoints") == std::vector<std::int64_t>{6});
  config.log.run_dir = folder / "often";
  config.train.save_minutes = 1e-9;
  REQUIRE(train_run(config, 2).code == ExitCode::done);
  CHECK(checkpoint::steps_in(folder / "often/checkpoints") == std::vector<std::int64_t>{6, 5, 4});
  config.log.run_dir = folder / "never";
  config.train.save_minutes = 0;
  REQUIRE(train_run(config, 2).code == ExitCode::done);
  CHECK(checkpoint::steps_in(folder / "never/checkpoints").empty());
}

}  // namespace lancet
