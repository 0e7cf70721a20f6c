// Logs in the format of nccl-tests, written for these tests: the hardware file that they make gives their times back.
#include "lancet/profiler/nccl_log.h"

#include <catch2/catch.hpp>

#include "declared_hardware.h"
#include "lancet/cost/hardware.h"
#include "text.h"

namespace lancet {
namespace {

using namespace profiler;
using Collective = NcclLog::Collective;

// Two hosts of two ranks. The declared machine of the tests has two devices and one NIC of 1 Gbit/s (125 bytes/us) a
// node. A rank sends half of its bytes to the other host, together with its neighbour: 250 bytes of the size column are
// 250 bytes on the NIC.
const std::string devices = R"(# nThread 1 nGpus 1 minBytes 1024 maxBytes 4194304 step: 4(factor)
# Using devices
#  Rank  0 Group  0 Pid     11 on      one device  0 [0x1b] A device
#  Rank  1 Group  0 Pid     12 on      one device  1 [0x1c] A device
#  Rank  2 Group  0 Pid     21 on      two device  0 [0x1b] A device
#  Rank  3 Group  0 Pid     22 on      two device  1 [0x1c] A device
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
)";
const std::string all_to_all = devices + R"(
        1024            64     float    none      -1    200.0    0.01    0.00      0    200.0    0.01    0.00      0
       65536          4096     float    none      -1   1510.7    0.04    0.03      0   1500.0    0.04    0.03      0
     4194304        262144     float    none      -1  42143.0   0.100   0.075      0  42000.0   0.100   0.075      0
# Out of bounds values : 0 OK
)";
// An older version, without a root, through mpirun.
const std::string all_reduce =
    std::string(devices).replace(devices.find("#  Rank  0"), 10, "[1,0]<stdout>:#  Rank  0") + R"(
[1,0]<stdout>:        1024           256     float     sum    360.0    0.00    0.00  1e-07    350.0    0.00    0.00  1e-07
[1,0]<stdout>:     4194304       1048576     float     sum  42303.0   0.099   0.149  1e-07  42000.0   0.100   0.150  1e-07
)";

cost::Hardware with(const std::string& log) {
  const auto parsed = parse_nccl_log(log, "a.log");
  INFO((parsed.ok() ? "" : parsed.error().message));
  REQUIRE(parsed.ok());
  const auto text = with_nccl_log(test::declared_hardware({.latency_us = 0}), "machine.json", *parsed, "a.log");
  INFO((text.ok() ? "" : text.error().message));
  REQUIRE(text.ok());
  return *cost::parse_hardware(*text, "machine.json");
}

std::string refused(const std::string& log) {
  const auto parsed = parse_nccl_log(log, "a.log");
  REQUIRE_FALSE(parsed.ok());
  CHECK(parsed.error().code == ExitCode::config);
  CHECK(parsed.error().message.find('\n') == std::string::npos);
  return parsed.error().message;
}

}  // namespace

TEST_CASE("a log of nccl-tests has its collective, ranks, hosts and times") {
  const auto log = parse_nccl_log(all_to_all, "a.log");
  REQUIRE(log.ok());
  CHECK(log->collective == Collective::all_to_all);
  CHECK(log->ranks == 4);
  CHECK(log->hosts == 2);
  REQUIRE(log->rows.size() == 3);
  CHECK(log->rows[1].bytes == 65536);
  CHECK(log->rows[1].us == 1510.7);
  CHECK(parse_nccl_log(all_reduce, "a.log")->collective == Collective::all_reduce);
  CHECK(parse_nccl_log(all_reduce, "a.log")->rows[1].us == 42303.0);
  // Rows of no bytes are those of fewer bytes than ranks.
  CHECK(parse_nccl_log(test::replaced(all_to_all, "        1024            64", "           0             0"), "a.log")
            ->rows.size() == 2);
}

TEST_CASE("a hardware file with a log in it gives the log's times back") {
  const cost::Hardware all_to_alls = with(all_to_all);
  CHECK(all_to_alls.network.latency_us == 200);
  // The bytes to the other three ranks are three quarters of the size column.
  CHECK(cost::all_to_all_ms(all_to_alls, {4, 2}, 0.75 * 65536) == Approx(1.5107).epsilon(1e-3));
  CHECK(cost::all_to_all_ms(all_to_alls, {4, 2}, 0.75 * 4194304) == Approx(42.143).epsilon(1e-3));
  // Among single ranks the smallest time holds that of two more messages.
  const std::string slow_messages = test::replaced(test::declared_hardware({.latency_us = 0}),
                                                   R"("message_us": {"value": 0)", R"("message_us": {"value": 30)");
  NcclLog apart = *parse_nccl_log(all_to_all, "a.log");
  apart.hosts = 4;
  const auto text = with_nccl_log(slow_messages, "machine.json", apart, "a.log");
  REQUIRE(text.ok());
  const cost::Hardware with_messages = *cost::parse_hardware(*text, "machine.json");
  CHECK(with_messages.network.latency_us == 140);
  CHECK(cost::all_to_all_ms(with_messages, {4, 4}, 0.75 * 1024) == Approx(0.2).epsilon(1e-3));
  CHECK(cost::all_to_all_ms(with_messages, {4, 4}, 0.75 * 65536) == Approx(1.5107).epsilon(1e-3));
  const cost::Hardware all_reduces = with(all_reduce);
  CHECK(all_reduces.network.hop_us == 180);
  CHECK(cost::all_reduce_ms(all_reduces, {4, 2}, 4194304) == Approx(42.303).epsilon(1e-3));
  // What the log does not measure stays.
  CHECK(all_reduces.network.all_to_all_efficiency.size() == 1);
  CHECK(all_reduces.network.all_to_all_efficiency[0].share == 1);
}

TEST_CASE("entries of other numbers of nodes and their bands stay, and the source names the log") {
  const auto text = with_nccl_log(
      test::replaced(test::declared_hardware({.latency_us = 0}),
                     R"("hop_us": {"value": 0, "source": "a test"}, "message_us": {"value": 0, "source": "a test"},
  "all_to_all_efficiency": {"points": [[1, 1, 1]],)",
                     R"("hop_us": {"value": 0, "source": "a test"}, "message_us": {"value": 0, "source": "a test"},
  "all_to_all_efficiency": {"points": [[2, 1, 0.5], [8, 1, 0.4]], "low": [[8, 1, 0.3]], "high": [[2, 1, 0.9]],)"),
      "machine.json", *parse_nccl_log(all_to_all, "a.log"), "a.log");
  REQUIRE(text.ok());
  const auto table = test::json_in(*text)["network"]["all_to_all_efficiency"];
  REQUIRE(table["points"].size() == 3);
  CHECK(table["points"][0][0] == 2);
  CHECK(table["points"][0][1] == Approx(0.032768));  // MB to the other host
  CHECK(table["points"][0][2] == Approx(65536 / 1310.7 / 125));
  CHECK(table["points"][2] == nlohmann::json({8, 1, 0.4}));
  CHECK(table["low"].size() == 3);
  CHECK(table["high"].size() == 2);
  CHECK(table["source"] == "a test; 2 nodes: measured, a.log, 4 ranks on 2 hosts");
}

TEST_CASE("a bad log is refused in one line") {
  CHECK(refused("nothing") == "a.log: expected a table of nccl-tests (all_reduce_perf, alltoall_perf), found none");
  CHECK(
      refused(test::replaced(all_to_all, "1510.7", "N/A"))
          .starts_with("a.log:11: expected a row of a rising size with its time and bandwidths, found '       65536"));
  CHECK(refused(test::replaced(all_to_all, "     4194304 ", "         512 ")).starts_with("a.log:12: expected a row"));
  CHECK(refused(all_to_all.substr(devices.size())) ==
        "a.log: expected lines '# Rank ... on HOST' of at least two ranks, found 0");
  CHECK(refused(test::replaced(all_to_all, "0.100   0.075      0  42000.0", "0.100   0.100      0  42000.0")) ==
        "a.log: expected all_reduce_perf or alltoall_perf, whose bus bandwidth is 2 (n-1)/n or (n-1)/n of the other, "
        "found 1.00 with 4 ranks and no reduction");
  CHECK(refused(test::replaced(all_to_all, "0.03      0   1500.0", "0.03     17   1500.0")) ==
        "a.log:11: expected results without errors, found 17 wrong ones");
  CHECK(refused(test::replaced(all_to_all, "Rank  2 Group  0 Pid     21 on      two",
                               "Rank  2 Group  0 Pid     21 on      one")) ==
        "a.log: expected 2 ranks on each of 2 hosts, found 3 on one");
  // A reduce-scatter has the ratio of an all-to-all.
  CHECK(refused(test::replaced(all_reduce, "0.149", "0.075")).ends_with("found 0.76 with 4 ranks and a reduction"));
  NcclLog log = *parse_nccl_log(all_to_all, "a.log");
  log.rows.back().us /= 2;
  CHECK(with_nccl_log(test::declared_hardware({.latency_us = 0}), "machine.json", log, "a.log").error().message ==
        "a.log: expected at most the declared rate of the NICs of machine, found 1.61 times as much");
  log = *parse_nccl_log(all_to_all, "a.log");
  log.ranks = 6;
  CHECK(with_nccl_log(test::declared_hardware(), "machine.json", log, "a.log").error().message ==
        "a.log: expected at most 2 ranks a host, the devices of a node of machine, found 3");
  log.ranks = 4, log.rows.resize(1);
  CHECK(with_nccl_log(test::declared_hardware(), "machine.json", log, "a.log").error().message ==
        "a.log: expected messages that take at least twice as long as the smallest, found none");
}

}  // namespace lancet
