// The program and the CUDA module: the one runs without what the other needs.
#include <catch2/catch.hpp>

#include "program.h"

namespace lancet {

TEST_CASE("the program is linked to no CUDA library") {
  const std::string needed = test::shell("readelf -d " LANCET_BINARY).output;
  REQUIRE(needed.find("libstdc++") != std::string::npos);  // so the list was read
  for (const char* library : {"cuda", "cublas", "cudnn", "nccl", "nvrtc", "libnv"}) {
    INFO(library);
    CHECK(needed.find(library) == std::string::npos);
  }
}

TEST_CASE("device=cuda where there is no module, driver or GPU: one line, code 2") {
  const test::TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config);
  const auto outcome = test::lancet("train " + config + " --set device=cuda --run-dir " + (folder / "run"));
  if (outcome.code == 0) {
    WARN("SKIPPED: there is a GPU");
    return;
  }
  INFO(outcome.output);
  CHECK(outcome.code == 2);
  CHECK(outcome.lines_with("device: expected ") == 1);
  CHECK_FALSE(std::filesystem::exists(folder / "run"));
}

TEST_CASE("transports of GPUs are none of the CPU's") {
  const test::TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config);
  const auto nccl = test::lancet("train " + config + " --set comm.transport=nccl");
  CHECK(nccl.code == 2);
  CHECK(
      nccl.lines_with("comm.transport: expected \"auto\", \"mpi\", \"self\" or \"emulated\" for device \"cpu\", found "
                      "\"nccl\"") == 1);
  const auto emulated = test::lancet("train " + config + " --set comm.transport=emulated");
  CHECK(emulated.code == 2);
  CHECK(emulated.lines_with(
            "comm.transport: expected comm.network and comm.emulated_ranks for \"emulated\", found \"\" and "
            "0") == 1);
}

}  // namespace lancet
