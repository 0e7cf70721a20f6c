// Sweeps of real runs, here and on an emulated cluster: their records, and the cleanup after a signal.
#if defined(LANCET_HAVE_MPI)
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "program.h"
#include "text.h"

namespace lancet {
namespace {

const std::string cluster_name = "ls" + std::to_string(::getpid()) + "-";

// A command in the source folder, with its own cluster.
std::string in_sources(const std::string& command) {
  return "cd " LANCET_SOURCE_DIR " && LANCET_CLUSTER=" + cluster_name + " " + command;
}

struct RealFiles {
  test::TemporaryFolder folder;
  std::string config = folder.write("small.json", test::small_config_text);
  std::string settings = folder.write("settings.json", R"({"models": {"small": {"config": ")" + config + R"("}},
    "policies": {"sequential": {"set": ["overlap.policy=sequential"]}, "dW": {"set": ["overlap.policy=dw"]}}})");
  std::string experiment(int steps) const {
    return folder.write("real.json", R"({"title": "a test", "warmup": 1, "steps": )" + std::to_string(steps) +
                                         R"(, "rate": "1gbit", "grids": [{"on": "this", "models": ["small"],
      "gates": ["switch"], "ranks": [2], "policies": ["sequential", "dW"]}]})");
  }
  std::vector<nlohmann::json> records() const {
    std::vector<nlohmann::json> found;
    std::ifstream in(folder / "out/points.jsonl");
    for (std::string line; std::getline(in, line);) found.push_back(test::json_in(line));
    return found;
  }
  std::string sweep(int steps, const std::string& more) const {
    return LANCET_BINARY " bench sweep " + experiment(steps) + " --out " + (folder / "out") + more;
  }
};

std::string spaces_left() { return test::shell("ip netns list 2>/dev/null | grep " + cluster_name).output; }

}  // namespace

TEST_CASE("points measured on this machine have steps, predictions and the machine") {
  const RealFiles files;
  const auto outcome = test::shell(in_sources(files.sweep(2, "")));
  INFO(outcome.output);
  REQUIRE(outcome.code == 0);
  const auto records = files.records();
  REQUIRE(records.size() == 2);
  for (const auto& record : records) {
    CHECK(record["network"] == "measured");
    CHECK(record["status"] == "ok");
    CHECK(record["steps"] == 2);
    CHECK(record["step_ms"] > 0);
    CHECK(record["predicted_ms"] > 0);
    CHECK(record["routing"] == "as the gate decides on synthetic tokens");
    CHECK(record["place"].get<std::string>().find(" GiB") != std::string::npos);
  }
  // A late run is killed, counted and tried again.
  const auto late = test::shell(in_sources(files.sweep(10000, " --timeout 3")));
  INFO(late.output);
  CHECK(late.code == 1);
  CHECK(late.lines_with("2 of 2 failed") == 1);
  CHECK(files.records()[0]["status"] == "failed");
}

TEST_CASE("a sweep on emulated hosts removes its cluster after the last point and on a signal") {
  if (test::shell(in_sources("scripts/emulate-cluster.sh up --hosts 1 --rate 1gbit")).code == 77) {
    WARN("SKIPPED: no cluster can be emulated here");
    return;
  }
  REQUIRE(test::shell(in_sources("scripts/emulate-cluster.sh down")).code == 0);
  const RealFiles files;
  const auto done = test::shell(in_sources(files.sweep(2, " --on emulated")));
  INFO(done.output);
  REQUIRE(done.code == 0);
  CHECK(files.records()[1]["network"] == "emulated");
  CHECK(spaces_left().empty());
  // The first point of the other sweep would take long; its cluster is up and it runs when the signal comes.
  const std::string background = files.sweep(10000, " --on emulated") + " >" + (files.folder / "said") + " 2>&1 & " +
                                 "pid=$!; while ! ls " + (files.folder / "out/runs") +
                                 "/*/metrics.jsonl >/dev/null 2>&1; do kill -0 $pid || exit 9; sleep 0.1; done; "
                                 "kill -TERM $pid; wait $pid";
  std::filesystem::remove_all(files.folder / "out/runs");
  const auto stopped = test::shell(in_sources(background));
  std::ifstream in(files.folder / "said");
  const std::string said{std::istreambuf_iterator<char>(in), {}};
  INFO(said);
  CHECK(stopped.code == 75);
  CHECK(said.find("stopped: 0 of 2 points are in ") != std::string::npos);
  CHECK(spaces_left().empty());
}

}  // namespace lancet
#endif
