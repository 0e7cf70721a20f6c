// The program and the CUDA plugin: the program runs without the libraries that the plugin needs.
#include <catch2/catch.hpp>

#include "program.h"
#include "text.h"

namespace lancet {
namespace {

// Checks a command that requests a GPU on a machine without one: it prints one line and writes nothing at `out`.
void check_refused(const std::string& command, const std::string& out) {
  const auto outcome = test::lancet(command);
  if (outcome.code == 0) {
    WARN("SKIPPED: there is a GPU");
    return;
  }
  INFO(outcome.output);
  CHECK(outcome.code == 2);
  CHECK(outcome.lines_with("device: expected ") == 1);
  CHECK_FALSE(std::filesystem::exists(out));
}

}  // namespace

TEST_CASE("the program is linked to no CUDA library") {
  const std::string needed = test::shell("readelf -d " LANCET_BINARY).output;
  REQUIRE(needed.find("libstdc++") != std::string::npos);  // proof that the list was read
  for (const char* library : {"cuda", "cublas", "cudnn", "nccl", "nvrtc", "libnv"}) {
    INFO(library);
    CHECK(needed.find(library) == std::string::npos);
  }
}

TEST_CASE("device=cuda without plugin, driver or GPU: one line, code 2") {
  const test::TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config_text), run = folder / "run";
  check_refused("train " + config + " --set device=cuda --run-dir " + run, run);
}

TEST_CASE("a mirrored rank's step is traced as one rank of many") {
  const test::TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config_text), run = folder / "run";
  const auto outcome = test::lancet("train " + config +
                                    " --set comm.transport=mirrored --set comm.network=" LANCET_SOURCE_DIR
                                    "/configs/hardware/ethernet-10g-cpu.json --set "
                                    "comm.mirrored_ranks=4 --set train.steps=3 --set log.trace=3 --run-dir " +
                                    run);
  INFO(outcome.output);
  REQUIRE(outcome.code == 0);
  const auto events = test::json_file(run + "/trace.json")["traceEvents"];
  int all_to_alls = 0;
  for (const auto& event : events) {
    if (event["ph"] != "X") continue;
    CHECK(event["pid"] == 0);
    all_to_alls += event["tid"] == 1 && event["dur"].get<double>() > 0;
  }
  CHECK(all_to_alls > 0);
}

TEST_CASE("profile measures the device that the config names") {
  const test::TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config_text), file = folder / "costs.json";
  check_refused("profile " + config + " --set device=cuda --seconds 0 --out " + file, file);
}

TEST_CASE("transports of GPUs are refused for device=cpu") {
  const test::TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config_text);
  const auto nccl = test::lancet("train " + config + " --set comm.transport=nccl");
  CHECK(nccl.code == 2);
  CHECK(
      nccl.lines_with("comm.transport: expected \"auto\", \"mpi\", \"self\" or \"mirrored\" for device \"cpu\", found "
                      "\"nccl\"") == 1);
  const auto mirrored = test::lancet("train " + config + " --set comm.transport=mirrored");
  CHECK(mirrored.code == 2);
  CHECK(mirrored.lines_with(
            "comm.transport: expected comm.network and comm.mirrored_ranks for \"mirrored\", found \"\" and "
            "0") == 1);
}

}  // namespace lancet
