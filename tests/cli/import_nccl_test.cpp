// lancet bench import-nccl as a user starts it; tests/profiler/nccl_log_test.cpp has the numbers.
#include <catch2/catch.hpp>

#include "declared_hardware.h"
#include "lancet/base/atomic_file.h"
#include "lancet/cost/hardware.h"
#include "program.h"

namespace lancet {
namespace {

using test::lancet;

// Two ranks on two hosts.
const char* log_text = R"(#  Rank  0 Group  0 Pid     11 on      one device  0 [0x1b] A device
#  Rank  1 Group  0 Pid     21 on      two device  0 [0x1b] A device
        1024            64     float    none      -1    200.0    0.01    0.00      0    200.0    0.01    0.00      0
     4194304        262144     float    none      -1  42143.0   0.100   0.050      0  42000.0   0.100   0.050      0
)";

}  // namespace

TEST_CASE("bench import-nccl writes a hardware file that plan takes, and names what it read") {
  const test::TemporaryFolder folder;
  const std::string machine = folder.write("machine.json", test::declared_hardware()),
                    log = folder.write("a.log", log_text), made = folder / "new.json",
                    config = folder.write("small.json", test::small_config_text);
  const auto outcome = lancet("bench import-nccl " + machine + " " + log + " --out " + made);
  CHECK(outcome.output == log + ": all-to-alls of 2 ranks on 2 hosts\n");
  REQUIRE(outcome.code == 0);
  const auto hardware = cost::parse_hardware(*read_file(made, "a file"), made);
  REQUIRE(hardware.ok());
  CHECK(hardware->network.latency_us == 200);
  CHECK(lancet("plan " + config + " --ranks 2 --hosts 2 --on " + made).code == 0);
}

TEST_CASE("bench import-nccl refuses bad files in one line and writes nothing") {
  const test::TemporaryFolder folder;
  const std::string machine = folder.write("machine.json", test::declared_hardware()),
                    log = folder.write("a.log", log_text), made = folder / "new.json";
  const auto refusal = [&](const std::string& files) {
    const auto outcome = lancet("bench import-nccl " + files + " --out " + made);
    CHECK(outcome.code == 2);
    CHECK_FALSE(std::filesystem::exists(made));
    return outcome.output;
  };
  CHECK(refusal(machine + "x " + log) == "error: " + machine + "x: expected a hardware file, found no such file\n");
  CHECK(refusal(machine + " " + log + "x") ==
        "error: " + log + "x: expected a log of nccl-tests, found no such file\n");
  CHECK(refusal(machine + " " + machine) ==
        "error: " + machine + ": expected a table of nccl-tests (all_reduce_perf, alltoall_perf), found none\n");
}

}  // namespace lancet
