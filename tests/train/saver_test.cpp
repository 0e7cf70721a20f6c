// Saving with a disk that is slow, fails or hangs: no rank waits alone, and the run continues.
#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <limits>
#include <nlohmann/json.hpp>

#include "blocking_file_system.h"
#include "checkpoint/support.h"
#include "faulty_file_system.h"
#include "good.h"
#include "lancet/run/resume_point.h"
#include "lancet/run/saver.h"
#include "log_capture.h"
#include "temporary_folder.h"
#include "text.h"
#include "train/runs.h"
#include "train/support.h"

namespace lancet {
namespace {

namespace fs = std::filesystem;
using test::BlockingFileSystem;
using test::Fault;
using test::FaultyFileSystem;
using test::LogCapture;
using test::TemporaryFolder;
using StepList = std::vector<std::int64_t>;

// A share of more than one block per rank.
config::Config saving_config(const std::string& run) {
  auto config = test::small_config();
  config.model.vocab_size = 100000;
  config.train.save_interval = 1;
  config.train.save_buffer_mb = 8;
  config.log.run_dir = run;
  return config;
}

checkpoint::Manifest manifest_at(const config::Config& config, std::int64_t step, int ranks) {
  return run::manifest_of(config, config, {.step = step}, ranks, 0, "");
}

// Each rank with a trainer and its own disk.
void on_two_ranks(const config::Config& config, std::array<BlockingFileSystem, 2>& disks,
                  const std::function<Status(comm::Communicator&, run::Saver&)>& body) {
  test::good(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = 2}));
    run::Saver saver(config, world, trainer->store(), disks[std::size_t(world.rank())]);
    LANCET_TRY(saver.reserve());
    return body(world, saver);
  }));
}

Status expect(bool right, const char* what) { return right ? Status() : Status(internal_error(what)); }

// Begins a save, which is `begun` or put off.
Status begin(run::Saver& saver, const checkpoint::Manifest& manifest, bool begun = true) {
  LANCET_ASSIGN(const bool found, saver.begin(manifest, false));
  return expect(found == begun, begun ? "expected a save that is begun" : "expected a save that is put off");
}

StepList whole_in(const std::string& run) {
  StepList steps;
  for (const std::int64_t step : checkpoint::steps_in(run + "/checkpoints")) {
    const auto opened = checkpoint::Checkpoint::open(fs::path(run) / "checkpoints" / checkpoint::folder_name(step));
    if (opened.ok() && test::verify(*opened).ok()) steps.push_back(step);
  }
  return steps;
}

}  // namespace

TEST_CASE("a save with a busy disk is put off by all ranks, and later ones are written") {
  const TemporaryFolder folder;
  auto config = saving_config(folder / "run");
  config.train.save_buffer_mb = 64;  // the whole share
  std::array<BlockingFileSystem, 2> disks;
  disks[1].hold();
  on_two_ranks(config, disks, [&](comm::Communicator& world, run::Saver& saver) -> Status {
    saver.set_patience({.busy = std::chrono::milliseconds(50), .stuck = std::chrono::minutes(10)});
    LANCET_TRY(begin(saver, manifest_at(config, 1, 2)));
    LANCET_TRY(begin(saver, manifest_at(config, 2, 2), false));
    LANCET_TRY(expect(saver.postponed(), "the second is put off"));
    LANCET_TRY(world.barrier());
    if (world.rank() == 1) disks[1].release();
    LANCET_TRY(saver.finish());
    LANCET_TRY(expect(!saver.last_failure() && !saver.postponed(), "the first was written"));
    LANCET_TRY(begin(saver, manifest_at(config, 3, 2)));
    return saver.finish();
  });
  CHECK(whole_in(folder / "run") == StepList{3, 1});
}

TEST_CASE("with a small buffer ranks wait together for a disk, and give up if it hangs") {
  const TemporaryFolder folder;
  const auto config = saving_config(folder / "run");
  std::array<BlockingFileSystem, 2> disks;
  disks[1].hold();
  on_two_ranks(config, disks, [&](comm::Communicator& world, run::Saver& saver) -> Status {
    saver.set_patience({.busy = std::chrono::minutes(10), .stuck = std::chrono::seconds(1)});
    LANCET_TRY(begin(saver, manifest_at(config, 1, 2)));
    LANCET_TRY(world.barrier());
    if (world.rank() == 1) disks[1].release();
    LANCET_TRY(saver.finish());
    LANCET_TRY(expect(saver.last_failure().has_value(), "the first was not written"));
    const std::string& why = saver.last_failure()->message;
    saver.set_patience({});
    LANCET_TRY(expect(why.starts_with("rank 1: the disk took nothing for "), "the rank is named"));
    LANCET_TRY(begin(saver, manifest_at(config, 2, 2)));
    LANCET_TRY(saver.finish());
    return expect(!saver.last_failure(), "the second was written");
  });
  CHECK(whole_in(folder / "run") == StepList{2});
}

namespace {

struct Ended {
  Error error{ExitCode::done, "", false};
  std::vector<double> losses;
};

// Two ranks, of which the last may have a faulty disk.
Ended train_and_save(const config::Config& config, checkpoint::FileSystem* files) {
  Ended ended;
  test::good(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    train::TrainerOptions options{.local_ranks = 2};
    if (world.rank() == 1) options.files = files;
    const Status mine = train::train(config, world, options);
    if (!mine.ok() && world.rank() == 0) ended.error = mine.error();
    return {};
  }));
  std::ifstream in(config.log.run_dir + "/metrics.jsonl");
  for (std::string line; std::getline(in, line);)
    if (const auto record = test::json_in(line); record.contains("loss")) ended.losses.push_back(record["loss"]);
  return ended;
}

}  // namespace

TEST_CASE("a run on two ranks survives a failing disk, reports it, keeps its checkpoints and resumes") {
  auto config = test::small_config();
  config.train.steps = 6;
  config.train.save_interval = 2;
  const TemporaryFolder folder;
  config.log.run_dir = folder / "sound";
  const Ended sound = train_and_save(config, nullptr);
  REQUIRE(sound.error.code == ExitCode::done);
  REQUIRE(whole_in(folder / "sound") == StepList{6, 4, 2});
  // The number of calls of a save on this rank, so that the fault hits the second save.
  const Fault fault = GENERATE(Fault::short_write, Fault::no_space, Fault::io_error, Fault::crash);
  FaultyFileSystem counting(fault, std::numeric_limits<int>::max());
  config.log.run_dir = folder / "counted";
  REQUIRE(train_and_save(config, &counting).error.code == ExitCode::done);
  const int calls = counting.calls / 3;
  REQUIRE(calls >= 2);
  for (const int call : {0, calls / 2, calls - 1}) {
    INFO("fault " << int(fault) << " at call " << call << " of " << calls);
    config.log.run_dir = folder / ("faulty-" + std::to_string(call));
    FaultyFileSystem files(fault, calls + call);
    const LogCapture log;
    const Ended ended = train_and_save(config, &files);
    if (fault == Fault::crash) files.lose_unsynced();
    CHECK(ended.losses == sound.losses);
    if (fault == Fault::short_write) {
      CHECK(ended.error.code == ExitCode::done);
      CHECK(whole_in(config.log.run_dir) == StepList{6, 4, 2});
      continue;
    }
    CHECK(ended.error.code == ExitCode::data);
    CHECK(ended.error.message.starts_with("the run ended, but its last checkpoint was not saved: rank 1: "));
    CHECK(log.count("warning: step 4 was not saved, older checkpoints stay: rank 1: ") == 1);
    CHECK(log.count("warning: step 6 was not saved, older checkpoints stay: rank 1: ") == 1);
    CHECK(whole_in(config.log.run_dir) == StepList{2});
    // Then resumes from there with a sound disk.
    const LogCapture again;
    const Ended resumed = train_and_save(config, nullptr);
    CHECK(again.count("resume     after step 2") > 0);
    CHECK(resumed.error.code == ExitCode::done);
    CHECK(resumed.losses == sound.losses);
    CHECK(whole_in(config.log.run_dir) == StepList{6, 4, 2});
  }
}

// Other programs remove, rename or replace a run folder while its run trains.

namespace {

namespace fs = std::filesystem;
using namespace test;

// The result of a run on two ranks; after the first two steps rank 0 calls `change`.
Error run_with(const config::Config& config, const std::function<void()>& change, std::atomic<int>* stop = nullptr) {
  Error error{ExitCode::done, "", false};
  int polls = 0;
  test::good(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    train::TrainerOptions options{.local_ranks = 2, .stop = stop};
    options.interrupted = [&] {
      if (world.rank() == 0 && ++polls == 2) change();
      return false;
    };
    const Status mine = train::train(config, world, options);
    CHECK((mine.ok() || mine.error().agreed));
    if (world.rank() == 0 && !mine.ok()) error = mine.error();
    return {};
  }));
  return error;
}

void check_lost(const Error& error, const std::string& run) {
  CHECK(error.code == ExitCode::data);
  CHECK(error.message == run +
                             ": expected the folder in which the run began, found that it was removed, renamed or "
                             "replaced; the run ends and saves nothing more");
}

}  // namespace

TEST_CASE("a run whose folder is removed ends at its next save") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  config.train.save_interval = 3;
  check_lost(run_with(config, [&] { fs::remove_all(folder / "run"); }), folder / "run");
  CHECK_FALSE(fs::exists(folder / "run"));
}

TEST_CASE("a run whose folder is replaced leaves the new one alone") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  config.train.save_interval = 3;
  check_lost(run_with(config,
                      [&] {
                        fs::rename(folder / "run", folder / "old");
                        fs::create_directories(folder / "run/checkpoints/step-000001");
                      }),
             folder / "run");
  CHECK(std::distance(fs::recursive_directory_iterator(folder / "run"), {}) == 2);
  CHECK(fs::exists(folder / "run/checkpoints/step-000001"));
}

TEST_CASE("a run that saves nothing or is stopped notices at its end that its folder is gone") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  std::atomic<int> stop{0};
  const int signal = GENERATE(0, SIGTERM);
  config.train.save_interval = 0;
  const auto remove = [&] {
    fs::remove_all(folder / "run");
    stop = signal;
  };
  check_lost(run_with(config, remove, &stop), folder / "run");
  CHECK_FALSE(fs::exists(folder / "run"));
}

}  // namespace lancet
