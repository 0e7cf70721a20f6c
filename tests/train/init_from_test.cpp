// --init-from on the command line of a run that has begun: the run resumes, and logs the checkpoint that it uses.
#include <catch2/catch.hpp>

#include "log_capture.h"
#include "temporary_folder.h"
#include "train/support.h"

namespace lancet {

TEST_CASE("a run with checkpoints of its own logs that it ignores --init-from") {
  const test::TemporaryFolder folder;
  const auto run = [&](const std::string& name, const std::string& init_from, std::int64_t stop_after) {
    auto config = test::small_config();
    config.train.steps = 10;
    config.train.stop_after = stop_after;
    config.log.run_dir = folder / name;
    const auto world = comm::make_self();
    const Status status = train::train(config, *world, {.local_ranks = 1, .init_from = init_from});
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == ExitCode::saved);
  };
  run("a", "", 2);
  const std::string note = "--init-from " + (folder / "a") + " was not needed";
  {
    const test::LogCapture log;
    run("b", folder / "a", 3);
    CHECK(log.count("weights    of step 2 from ") == 1);
    CHECK(log.count("--init-from") == 0);
  }
  const test::LogCapture log;
  run("b", folder / "a", 4);
  CHECK(log.count(note + ": the run resumes from " + (folder / "b/checkpoints/step-000003")) == 1);
  run("b", "/no/such/run", 5);  // not read
  CHECK(log.count("--init-from /no/such/run was not needed") == 1);
}

}  // namespace lancet
