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

// Synthetic tokens; rank 1 cannot read the last micro batch of the step after `last`.
class EndingBatches final : public data::Batches {
 public:
  EndingBatches(const config::Config& config, comm::Communicator& world, std::int64_t last)
      : sound_(data::training_batches(config, {}, world.rank(), world.size()).value()),
        last_(world.rank() == 1 ? last : config.train.steps),
        last_micro_(int(config.train.gradient_accumulation_steps) - 1) {}
  Status fill(std::int64_t step, int micro, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) override {
    return step == last_ && micro == last_micro_ ? data_error("injected: found the end")
                                                 : sound_->fill(step, micro, inputs, targets);
  }

 private:
  const std::unique_ptr<data::Batches> sound_;
  const std::int64_t last_;
  const int last_micro_;
};

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

TEST_CASE("a batch that one rank cannot read stops all of them, and what was trained is saved") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "whole");
  config.train.gradient_accumulation_steps = GENERATE(1, 12);  // of 12 a plan holds 6
  REQUIRE(train_run(config, 2).code == ExitCode::done);
  config.log.run_dir = folder / "run";
  const std::int64_t last = GENERATE(1, 3);
  config.train.save_interval = GENERATE(3, 100);  // step 3 is being saved already, or is not
  std::array<Error, 2> errors;
  REQUIRE(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
            EndingBatches batches(config, world, last);
            const Status status = train::train(config, world, {.local_ranks = 2, .batches = &batches});
            if (!status.ok()) errors[std::size_t(world.rank())] = status.error();
            return {};
          }).ok());
  for (const Error& error : errors) {
    CHECK(error.code == ExitCode::data);
    CHECK(error.agreed);
    CHECK(error.message == "saved and stopped after step " + std::to_string(last) +
                               " of 6 (rank 1: injected: found the end); the same command resumes from there");
  }
  CHECK(manifest_in(folder / "run", last).step == last);
  CHECK(losses(folder / "run").size() == std::size_t(last));
  REQUIRE(train_run(config, 2).code == ExitCode::done);
  CHECK(losses(folder / "run") == losses(folder / "whole"));
}

TEST_CASE("a last evaluation that cannot be read loses no step") {
  const TemporaryFolder folder;
  auto config = config_with_files(folder, "run");
  config.data.eval = folder / "eval.bin";
  fs::copy_file(config.data.train, config.data.eval);
  const auto bytes = fs::file_size(config.data.eval);
  int polls = 0;
  train::TrainerOptions options;
  options.interrupted = [&] {  // the last poll of the steps
    if (++polls == 6) fs::resize_file(config.data.eval, bytes - 1000);
    return false;
  };
  const Error error = train_run(config, 1, options);
  CHECK(error.code == ExitCode::data);
  CHECK(error.message == "saved and stopped after step 6 of 6 (" + config.data.eval + ": expected " +
                             std::to_string(bytes) +
                             " bytes, found fewer: the file was cut while it was in use); the same command resumes "
                             "from there");
  CHECK(manifest_in(folder / "run", 6).step == 6);
  CHECK(held_out_losses(folder / "run").empty());
  fs::copy_file(config.data.train, config.data.eval, fs::copy_options::overwrite_existing);
  REQUIRE(train_run(config, 1).code == ExitCode::done);
  CHECK(held_out_losses(folder / "run").size() == 1);
}

TEST_CASE("the ids of an evaluation are checked before the first step") {
  const TemporaryFolder folder;
  auto config = config_with_files(folder, "run");
  config.data.eval = folder / "eval.bin";
  fs::copy_file(config.data.train, config.data.eval);
  std::fstream(config.data.eval, std::ios::binary | std::ios::in | std::ios::out).seekp(64 + 2 * 1000).write("C\0", 2);
  const Error error = train_run(config, 2);
  CHECK(error.code == ExitCode::data);
  CHECK(error.message.ends_with(config.data.eval + ": expected ids below 67, found 67 at token 1000"));
  CHECK_FALSE(fs::exists(folder / "run/metrics.jsonl"));
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
