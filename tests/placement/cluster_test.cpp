#include "lancet/placement/problem.h"

#include <catch2/catch.hpp>

#include "good.h"
#include "support.h"
#include "text.h"

namespace lancet::placement {
namespace {

// a and b are linked directly, one way; all but c are on the network.
const std::string three_devices = R"({
  "what": "three", "devices": [
    {"name": "a", "hardware": "p3dn-v100", "up_gbit_per_s": 10, "down_gbit_per_s": 20, "latency_us": 3, "source": "t"},
    {"name": "b", "hardware": "p3dn-v100:device.fp32_tflops=7.85", "memory_mb": 100, "up_gbit_per_s": 40,
     "down_gbit_per_s": 4, "latency_us": 5, "source": "t"},
    {"name": "c", "hardware": "p3dn-v100", "source": "t"}],
  "links": [
    {"from": "a", "to": "b", "gbit_per_s": 2, "latency_us": 1, "source": "t"},
    {"from": "b", "to": "c", "gbit_per_s": 8, "latency_us": 7, "source": "t"},
    {"from": "c", "to": "a", "gbit_per_s": 16, "latency_us": 2, "source": "t"}]})";

void check_refused(const std::string& from, const std::string& to, const std::string& said) {
  const auto cluster = parse_cluster(lancet::test::replaced(three_devices, from, to), "x/three.json");
  INFO(to);
  REQUIRE(!cluster.ok());
  CHECK(cluster.error().code == ExitCode::config);
  CHECK(cluster.error().message == "x/three.json: " + said);
}

}  // namespace

TEST_CASE("a cluster file gives devices, memories and paths") {
  const auto cluster = lancet::test::good(parse_cluster(three_devices, "x/three.json"));
  CHECK(cluster->name == "three");
  REQUIRE(cluster->devices.size() == 3);
  CHECK(cluster->devices[0].memory_mb == Approx(30 * 1073.741824));  // 32 GiB, 2 of them reserved
  CHECK(cluster->devices[1].memory_mb == 100);
  CHECK(cluster->devices[1].hardware.device.fp32_tflops ==
        Approx(0.5 * cluster->devices[0].hardware.device.fp32_tflops));
  const auto gbit = [&](int from, int to) { return 8 / cluster->ms_per_mb[std::size_t(from)][std::size_t(to)]; };
  CHECK(gbit(0, 1) == Approx(2));   // its own link, though the network carries 4
  CHECK(gbit(1, 0) == Approx(20));  // up 40, down 20
  CHECK(gbit(1, 2) == Approx(8));
  CHECK(gbit(0, 2) == Approx(4));  // a, network, b, c: the least of 10, 4 and 8
  CHECK(gbit(2, 1) == Approx(4));  // c, a, network, b: the least of 16, 10 and 4
  CHECK(cluster->latency_ms[0][1] == Approx(1e-3));
  CHECK(cluster->latency_ms[1][0] == Approx(8e-3));
  CHECK(cluster->latency_ms[0][2] == Approx(15e-3));
  CHECK(cluster->latency_ms[1][1] == 0);
  CHECK(cluster->ms_per_mb[2][2] == 0);
}

TEST_CASE("a wrong cluster file is an error of one line") {
  check_refused("\"what\": \"three\",", "", "what: expected a text, found none");
  check_refused("\"what\": \"three\"", "\"whta\": \"three\"",
                "the file: expected the fields what, devices, links, found 'whta'");
  check_refused(
      "\"memory_mb\": 100", "\"memory\": 100",
      "devices[1]: expected the fields name, hardware, memory_mb, up_gbit_per_s, down_gbit_per_s, latency_us, "
      "source, found 'memory'");
  check_refused("\"memory_mb\": 100", "\"memory_mb\": -1",
                "devices[1].memory_mb: expected a number from 0.001 to 1000000000000, found -1");
  check_refused("\"name\": \"b\"", "\"name\": \"a\"", "devices[1].name: expected a name of its own, found 'a' again");
  check_refused("\"name\": \"b\"", "\"name\": \"b\\u001b[31m\"",
                "devices[1].name: expected at most 40 bytes without control characters, found 'b?[31m'");
  check_refused("\"name\": \"b\"", "\"name\": \"b\", \"name\": \"d\"", "key 'devices[1].name' appears twice");
  check_refused("\"down_gbit_per_s\": 4, ", "",
                "devices[1].down_gbit_per_s: expected a number from 1e-06 to 1000000, found none");
  check_refused("\"latency_us\": 5, \"source\": \"t\"", "\"latency_us\": 5",
                "devices[1].source: expected a text, found none");
  check_refused("\"to\": \"b\"", "\"to\": \"d\"", "links[0].to: expected one of the devices a, b, c, found 'd'");
  check_refused("\"to\": \"b\"", "\"to\": \"a\"", "links[0].to: expected another device than from, found 'a'");
  check_refused("\"from\": \"c\", \"to\": \"a\"", "\"from\": \"a\", \"to\": \"b\"",
                "links[2]: expected one link from a device to another, found a second one of this pair");
  check_refused("\"from\": \"c\", \"to\": \"a\"", "\"from\": \"b\", \"to\": \"a\"",
                "links: expected a path from each device to every other one, found none from c to a");
  check_refused("\"gbit_per_s\": 8", "\"gbit_per_s\": 0",
                "links[1].gbit_per_s: expected a number from 1e-06 to 1000000, found 0");
  check_refused("\"what\": \"three\", \"devices\": [", "\"what\": \"three\", \"devices\": 3, \"links\": [",
                "key 'links' appears twice");
}

TEST_CASE("hardware of a cluster that cannot be read is named with its place") {
  const auto cluster = parse_cluster(
      lancet::test::replaced(three_devices, "\"hardware\": \"p3dn-v100\"", "\"hardware\": \"pdp-11\""), "three.json");
  REQUIRE(!cluster.ok());
  CHECK(cluster.error().message.starts_with("three.json: devices[0].hardware: hardware: expected a file or one of "));
}

TEST_CASE("the shipped clusters are read by name") {
  for (const char* name : {"moirai-inter", "moirai-intra", "memory-split", "one-device"}) {
    const auto cluster = read_cluster(std::string(LANCET_SOURCE_DIR "/configs/clusters/") + name + ".json");
    INFO(name << ": " << (cluster.ok() ? "" : cluster.error().message));
    REQUIRE(cluster.ok());
    CHECK(cluster->name == name);
    CHECK(cluster->devices.size() >= 3);
  }
  const auto moirai = read_cluster(LANCET_SOURCE_DIR "/configs/clusters/moirai-inter.json");
  CHECK(8 / moirai->ms_per_mb[2][1] == Approx(35.31));  // P4 to T4
  CHECK(8 / moirai->ms_per_mb[1][2] == Approx(35.32));
  const auto none = read_cluster("vax");
  REQUIRE(!none.ok());
  CHECK(none.error().message.starts_with("cluster: expected a file"));
}

}  // namespace lancet::placement
