// A rank that hangs between steps: the other reports the step after which it was missing, and waits for no disk before.
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "blocking_file_system.h"
#include "lancet/base/clock.h"
#include "temporary_folder.h"
#include "train/support.h"

namespace lancet {

TEST_CASE("a rank that is missing at the end of a step is reported with that step's number") {
  const test::TemporaryFolder folder;
  auto config = test::small_config();
  config.train.steps = 5;
  config.train.save_interval = 2;
  config.comm.timeout_s = 6;
  config.log.run_dir = folder / "run";
  // The disk blocks in the middle of a save. Never freed: nothing waits for the writing thread.
  static auto& disk = *new test::BlockingFileSystem;
  disk.hold();
  std::atomic<bool> given_up = false, held = true;
  Error of_waiting;
  const Status status = comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    int ends = 0;
    train::TrainerOptions options{.local_ranks = 2};
    options.interrupted = [&] {  // called once at the end of a step
      if (world.rank() != 1 || ++ends != 3) return false;
      const auto start = std::chrono::steady_clock::now();
      while (!given_up && seconds_since(start) < 60) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      held = given_up.load();
      disk.release();
      return false;
    };
    if (world.rank() == 0) options.files = &disk;
    const Status mine = train::train(config, world, options);
    if (world.rank() == 0) {
      given_up = true;
      if (!mine.ok()) of_waiting = mine.error();
    }
    return mine;
  });
  CHECK_FALSE(status.ok());
  CHECK(held);
  INFO(of_waiting.message);
  CHECK(of_waiting.code == ExitCode::communication);
  CHECK(of_waiting.message.starts_with("the end of step 3: "));
  CHECK(of_waiting.message.find("rank 1") != std::string::npos);
}

}  // namespace lancet
