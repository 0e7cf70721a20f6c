// A run folder that is removed, renamed or replaced by another one while its run goes on.
#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>

#include "temporary_folder.h"
#include "train/runs.h"

namespace lancet {
namespace {

namespace fs = std::filesystem;
using namespace test;

// The result of a run on two ranks; after the first two steps rank 0 calls `change`.
Error run_with(const config::Config& config, const std::function<void()>& change, std::atomic<int>* stop = nullptr) {
  Error error{ExitCode::done, "", false};
  int polls = 0;
  const Status status = comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    train::TrainerOptions options{.local_ranks = 2, .stop = stop};
    options.interrupted = [&] {
      if (world.rank() == 0 && ++polls == 2) change();
      return false;
    };
    const Status mine = train::train(config, world, options);
    CHECK((mine.ok() || mine.error().agreed));
    if (world.rank() == 0 && !mine.ok()) error = mine.error();
    return {};
  });
  REQUIRE(status.ok());
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
