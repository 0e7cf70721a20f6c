// The emulated cluster: hosts that are network namespaces, with limited links (scripts/emulate-cluster.sh).
#if defined(LANCET_HAVE_MPI)
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "processes.h"
#include "text.h"

namespace lancet {
namespace {

using std::chrono::steady_clock;
using test::Seconds;

// A cluster of this test alone, which is removed with the object.
class Cluster {
 public:
  Cluster(int hosts, const std::string& rate) {
    const auto up = command("up --hosts " + std::to_string(hosts) + " --rate " + rate);
    up_ = up.code == 0;
    if (up.code == 77)
      WARN("SKIPPED: " << up.output);
    else
      REQUIRE(up.output == "cluster '" + name_ + "': " + std::to_string(hosts) + " hosts, " + rate + " each way\n");
  }
  ~Cluster() { command("down"); }
  bool is_up() const { return up_; }
  const std::string& name() const { return name_; }
  test::Outcome command(const std::string& arguments) const {
    return test::shell("LANCET_CLUSTER=" + name_ + " " LANCET_SOURCE_DIR "/scripts/emulate-cluster.sh " + arguments);
  }
  test::Outcome lancet(const std::string& arguments) const { return command("run -- " LANCET_BINARY " " + arguments); }

 private:
  const std::string name_ = "lt" + std::to_string(getpid()) + "-";
  bool up_ = false;
};

}  // namespace

TEST_CASE("ranks on two emulated hosts train as on one, over links of the requested rate", "[long]") {
  const Cluster cluster(2, "100mbit");
  if (!cluster.is_up()) return;
  const auto again = cluster.command("up --hosts 2 --rate 1gbit");
  CHECK(again.code == 2);
  CHECK(again.lines_with("is up already") == 1);

  const test::TemporaryFolder folder;
  const std::string train = "train " + folder.write("small.json", test::small_config_text) +
                            " --set train.steps=3 --set train.micro_batch_size=2 --run-dir ";
  REQUIRE(test::mpirun(2, train + (folder / "here")).code == 0);
  const auto outcome = cluster.lancet(train + (folder / "there"));
  INFO(outcome.output);
  REQUIRE(outcome.code == 0);
  CHECK(outcome.lines_with("transport mpi (2 ranks, 2 hosts)") == 1);
  const auto here = test::metrics(folder / "here"), there = test::metrics(folder / "there");
  REQUIRE(there.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) CHECK(there[i]["loss"] == here[i]["loss"]);

  // 400 Mbit/s are 50 MB/s; the burst of 50 KB adds a percent to a message of 4 MB.
  REQUIRE(cluster.command("rate 400mbit").code == 0);
  const auto status = cluster.command("status");
  CHECK(status.lines_with("400Mbit  link up") == 2);
  const auto bench = cluster.lancet("bench network --min-mb 4 --max-mb 4");
  INFO(bench.output);
  REQUIRE(bench.code == 0);
  CHECK(bench.lines_with("compute stream: 1 thread") == (sysconf(_SC_NPROCESSORS_ONLN) >= 2));
  const auto row = test::match(bench.output, "all_to_all +4\\.000 +[0-9.]+ +([0-9.]+)");
  REQUIRE(row.size() == 2);
  CHECK(std::stod(row[1]) < 55);
  CHECK(std::stod(row[1]) > 5);

  CHECK(cluster.command("rate 0mbit")
            .lines_with("error: expected a rate like 500mbit, from 64kbit to 100gbit, found '0mbit'") == 1);
  CHECK(cluster.command("cut 01").lines_with("error: expected a host from ") == 1);
  const auto nothing = cluster.command("run -- /no/such/program");
  CHECK(nothing.code == 2);
  CHECK(nothing.lines_with("error: expected a program that can be run, found '/no/such/program'") == 1);

  REQUIRE(cluster.command("down").code == 0);
  CHECK(cluster.command("down").code == 0);
  CHECK(cluster.command("status").lines_with("not up") == 1);
  CHECK(test::shell("ip netns list").lines_with(cluster.name()) == 0);
  CHECK(test::shell("ls /etc/netns").lines_with(cluster.name()) == 0);
  CHECK(cluster.command("run -- true").code == 2);
}

TEST_CASE("a cluster name that ends in a digit is refused") {
  const auto outcome = test::shell("LANCET_CLUSTER=lancet1 " LANCET_SOURCE_DIR "/scripts/emulate-cluster.sh status");
  CHECK(outcome.code == 2);
  CHECK(outcome.lines_with("with no digit last, found 'lancet1'") == 1);
}

TEST_CASE("a link that is cut ends the run with code 5, and the error names the operation and the rank", "[long]") {
  const Cluster cluster(2, "1gbit");
  if (!cluster.is_up()) return;
  const test::TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config_text), run = folder / "run";
  test::Outcome outcome;
  std::thread job([&] {
    outcome = cluster.lancet(
        "train " + config + " --set train.gradient_accumulation_steps=1000000 --set comm.timeout_s=5 --run-dir " + run);
  });
  const bool begun = test::wait_until([&] { return std::filesystem::exists(run + "/metrics.jsonl"); });
  const bool worked = test::wait_until_worked(test::ranks_with(run), 0.2);
  const auto cut = cluster.command("cut 1");
  const auto since = steady_clock::now();
  job.join();
  CHECK(steady_clock::now() - since < Seconds(5 + 60));
  INFO(outcome.output);
  CHECK(begun);
  CHECK(worked);
  CHECK(cut.code == 0);
  CHECK(outcome.code == 5);
  const char* error =
      "stream (expert|reduce): \\[[0-9]+\\] [a-z_]+ at [a-z0-9_.@]+: [a-z_]+ #[0-9]+ of [0-9]+ bytes on "
      "\"(expert|reduce)\" \\(rank [01] of 2\\): timed out after 5 s: nothing came from rank [01]\n";
  CHECK(test::matches(outcome.output, error));
  // The cluster works as before.
  CHECK(cluster.command("restore " + cluster.name() + "1").code == 0);
  CHECK(cluster.lancet("train " + config + " --set train.steps=1 --run-dir " + run).code == 0);
}

TEST_CASE("a link that is dead at the start ends the run after comm.timeout_s", "[long]") {
  const Cluster cluster(2, "1gbit");
  if (!cluster.is_up()) return;
  const test::TemporaryFolder folder;
  REQUIRE(cluster.command("cut 1").code == 0);
  const auto outcome = cluster.lancet("train " + folder.write("small.json", test::small_config_text) +
                                      " --set comm.timeout_s=4 --run-dir " + (folder / "run"));
  INFO(outcome.output);
  CHECK(outcome.code == 5);
  CHECK(outcome.lines_with("start-up: timed out after 4 s: not all 2 ranks came") >= 1);
}

}  // namespace lancet
#endif
