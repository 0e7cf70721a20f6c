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
    CHECK(log.count("train.master_weights=false changes nothing in fp32") == notes);
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

}  // namespace lancet
