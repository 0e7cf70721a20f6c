// Work of one rank that takes longer than the timeout of the other ranks.
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "blocking_file_system.h"
#include "declared_costs.h"
#include "lancet/base/clock.h"
#include "lancet/run/run_plans.h"
#include "lancet/run/stream_communicators.h"
#include "temporary_folder.h"
#include "train/support.h"

namespace lancet {
namespace {

using namespace std::chrono_literals;

constexpr auto timeout = 1s;

// The first call takes three times as long as the ranks' timeout.
struct SlowCosts final : cost::Costs {
  const test::DeclaredCosts costs{};
  mutable std::atomic<int> asked{0};

  std::optional<double> compute_ms(std::string_view key) const override {
    if (asked++ == 0) std::this_thread::sleep_for(3 * timeout);
    return costs.compute_ms(key);
  }
  double all_to_all_ms(double bytes, ir::Axes = {}) const override { return costs.all_to_all_ms(bytes); }
  double all_reduce_ms(double bytes, ir::Axes = {}) const override { return costs.all_reduce_ms(bytes); }
  cost::CoreCost all_to_all_core() const override { return costs.all_to_all_core(); }
  cost::CoreCost all_reduce_core() const override { return costs.all_reduce_core(); }
  double launch_ms() const override { return costs.launch_ms(); }
  cost::Interference interference() const override { return costs.interference(); }
};

}  // namespace

TEST_CASE("a turn is much shorter than the ranks' timeout") {
  auto config = test::small_config();
  const auto turn_with = [&](double seconds) {
    config.comm.timeout_s = seconds;
    return run::turn_of(config);
  };
  CHECK(turn_with(300) == 200ms);
  CHECK(turn_with(0.4) == 100ms);
  CHECK(turn_with(0.001) == 1ms);
}

TEST_CASE("ranks wait for a plan that takes longer than comm.timeout_s") {
  auto config = test::small_config();
  config.comm.timeout_s = 1;
  config.overlap.policy = "lancet";
  const SlowCosts costs;
  std::array<std::string, 2> plans;
  const Status status = comm::run_inproc(
      2,
      [&](comm::Communicator& world) -> Status {
        LANCET_ASSIGN(const auto made, run::make_step_plans({config, 2}, world,
                                                            {.profile = {.local_ranks = 2}, .costs = &costs}, false));
        plans[std::size_t(world.rank())] = ir::print(made.step());
        return {};
      },
      timeout);
  INFO((status.ok() ? "" : status.error().message));
  REQUIRE(status.ok());
  CHECK(costs.asked > 0);
  CHECK(!plans[0].empty());
  CHECK(plans[0] == plans[1]);
}

TEST_CASE("rank 0 works alone, and the waiting ranks learn that another rank has ended") {
  std::atomic<int> works{0};
  std::array<Status, 3> ended;
  const Status status = comm::run_inproc(3, [&](comm::Communicator& world) -> Status {
    LANCET_TRY(run::run_on_rank0(world, 1ms, [&] { ++works; }));
    if (world.rank() == 2) return {};
    const Status mine = run::run_on_rank0(world, 1ms, [&] { ++works; });
    return ended[std::size_t(world.rank())] = mine;
  });
  CHECK_FALSE(status.ok());
  CHECK(works == 2);
  for (const int rank : {0, 1}) {
    REQUIRE_FALSE(ended[std::size_t(rank)].ok());
    CHECK(ended[std::size_t(rank)].error().code == ExitCode::communication);
  }
}

// A rank that hangs between steps: the other reports the step after which it was missing, and waits for no disk before.

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
