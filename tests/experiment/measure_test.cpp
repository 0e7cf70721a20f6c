// Measured points with doubles of the launcher and the cluster's script, which end, fail, hang or are stopped.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "declared_hardware.h"
#include "experiment/command.h"
#include "experiment/machine.h"
#include "experiment/process.h"
#include "lancet/base/atomic_file.h"
#include "lancet/experiment/run.h"
#include "log_capture.h"
#include "program.h"
#include "text.h"

namespace lancet {
namespace {

using namespace experiment;
using test::TemporaryFolder;
using How = Ended::How;

// A folder with doubles of scripts/mpirun.sh and scripts/emulate-cluster.sh, and one point.
struct Stage {
  TemporaryFolder folder;
  Experiment experiment;
  Launcher launcher;

  explicit Stage(const std::string& ranks, const std::string& cluster = "exit 0") {
    experiment.name = "test", experiment.warmup = 1, experiment.steps = 3, experiment.rate = "200mbit";
    Point point;
    point.id = "0123456789abcdef", point.on = "this", point.source = Source::measured;
    point.model = "small", point.gate = "switch", point.policy = "Lancet", point.ranks = 2;
    point.config_file = "small.json", point.overrides = {"overlap.policy=lancet"};
    experiment.points = {point};
    launcher.program = "lancet";
    launcher.folder = std::filesystem::path(std::string(folder / "out"));
    launcher.ranks_script = script("ranks.sh", ranks);
    launcher.cluster_script = script("cluster.sh", cluster);
    launcher.timeout_s = 60;
    launcher.grace_s = 0.2;
  }
  std::string script(const std::string& name, const std::string& text) const {
    const std::string path = folder.write(name, "#!/bin/bash\n" + text + "\n");
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }
  Result<Outcome> run() const { return measure(experiment, experiment.points[0], launcher); }
  std::string text_of(const std::string& name) const {
    std::ifstream in(folder / name);
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

// Appends its arguments to `calls`; for `train`, writes steps of 50, 10, 30, 20 ms, with `more` fields, and a plan into
// the run folder.
std::string good_run(const Stage& stage, const std::string& more = "") {
  const std::string config = stage.folder.write("small.json", test::small_config_text);
  const std::string machine = stage.folder.write("machine.json", test::declared_hardware());
  const std::string plan = stage.folder / "plan.ir";
  REQUIRE(test::lancet("plan " + config + " --ranks 4 --on " + machine + " --out " + plan +
                       " --set overlap.policy=lancet --set overlap.parts=2")
              .code == 0);
  return "echo \"$@\" >>" + (stage.folder / "calls") + R"(
[ "$3" = train ] || exit 0
for ms in 50 10 30 20; do
  echo "{\"step_ms\": $ms, \"compute_ms\": 8, \"a2a_ms\": 4, \"allreduce_ms\": 2, \"exposed_ms\": 3, \"hidden_pct\": 50, \"predicted_ms\": 19, \"load_max_over_mean\": 1.5)" +
         more + R"(}"
done >"$5/metrics.jsonl"
cp )" + plan +
         R"( "$5/plan.ir")";
}

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Runs a command that is stopped once the file exists.
Ended run_until(const std::filesystem::path& file, const Command& command, const std::filesystem::path& output,
                double grace_s) {
  std::atomic<int> stop{0};
  std::jthread waits([&](std::stop_token over) {
    while (!std::filesystem::exists(file) && !over.stop_requested())
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    stop = SIGTERM;
  });
  return run_command(command, output, {.seconds = 60, .stop = &stop, .grace_s = grace_s});
}

bool ends_soon(pid_t pid) {
  for (int i = 0; i < 500; ++i) {
    if (::kill(pid, 0) != 0) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace

TEST_CASE("a command ends with an exit code, a signal, or an error that it did not start") {
  const TemporaryFolder folder;
  const std::string output = folder / "output";
  const Ended three = run_command({"sh", "-c", "echo said; exit 3"}, output, {});
  CHECK(three.how == How::exited);
  CHECK(three.code == 3);
  std::string said;
  std::ifstream(output) >> said;
  CHECK(said == "said");
  CHECK(run_command({"sh", "-c", "kill -9 $$"}, output, {}).code == 128 + 9);
  const Ended none = run_command({folder / "no-such-program"}, output, {});
  CHECK(none.how == How::not_started);
  CHECK(none.code == ENOENT);
  CHECK(run_command({"true"}, folder / "no-such-folder/output", {}).code == ENOENT);
}

TEST_CASE("a command is ended after its time limit, not before") {
  const TemporaryFolder folder;
  Ended ended;
  const double seconds = seconds_of([&] {
    ended = run_command({"sleep", "1000"}, folder / "output", {.seconds = 0.3, .stop = nullptr, .grace_s = 60});
  });
  CHECK(ended.how == How::late);
  CHECK(ended.code == 128 + SIGTERM);
  CHECK(seconds >= 0.3);
}

TEST_CASE("a command that ignores SIGTERM is killed, with its child processes") {
  const TemporaryFolder folder;
  const std::string pids = folder / "pids";
  // It ignores SIGTERM and has a child in another session.
  const std::string deaf = "trap '' TERM; setsid sleep 1000 & echo $! >" + pids + ".part; mv " + pids + ".part " +
                           pids + "; while :; do sleep 0.05; done";
  const Ended ended = run_until(pids, {"bash", "-c", deaf}, folder / "output", 0.2);
  CHECK(ended.how == How::stopped);
  CHECK(ended.code == 128 + SIGKILL);
  int child = 0;
  std::ifstream(pids) >> child;
  REQUIRE(child > 1);
  CHECK(ends_soon(child));
}

TEST_CASE("a process is killed; another one that reuses its number is not") {
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  const Process process = process_of(child);
  CHECK(process.start > 0);
  CHECK(family_of(::getpid()).front() == process_of(::getpid()));
  const auto family = family_of(::getpid());
  CHECK(std::count(family.begin(), family.end(), process) == 1);
  kill_if_same({child, process.start - 1});
  kill_if_same({child, 0});
  ::kill(child, SIGUSR1);  // ends it, unless a SIGKILL came before
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WTERMSIG(status) == SIGUSR1);
  CHECK(process_of(child).start == 0);
}

TEST_CASE("a command does not outlive a sweep that is killed") {
  const TemporaryFolder folder;
  const std::string pids = folder / "pids";
  const pid_t sweep = ::fork();
  if (sweep == 0) {
    run_command({"sh", "-c", "echo $$ >" + pids + ".part; mv " + pids + ".part " + pids + "; exec sleep 1000"},
                folder / "output", {});
    ::_exit(0);
  }
  while (!std::filesystem::exists(pids)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  int command = 0;
  std::ifstream(pids) >> command;
  REQUIRE(command > 1);
  ::kill(sweep, SIGKILL);
  ::waitpid(sweep, nullptr, 0);
  CHECK(ends_soon(command));
}

TEST_CASE("a command is asked to end twice before it is killed") {
  const TemporaryFolder folder;
  const std::string log = folder / "log";
  const std::string counts = "trap 'echo term >>" + log + "; n=$((n + 1)); [ $n -lt 2 ] || exit 7' TERM; n=0; : >" +
                             log + "; while :; do sleep 0.02; done";
  // On a machine that is too busy for its answer, the command gets more time.
  Ended ended;
  for (double grace = 0.5; grace < 40 && ended.code != 7; grace *= 2) {
    std::filesystem::remove(log);
    ended = run_until(log, {"bash", "-c", counts}, folder / "output", grace);
  }
  CHECK(ended.how == How::stopped);
  CHECK(ended.code == 7);
  CHECK(*read_file(log, "it") == "term\nterm\n");
}

TEST_CASE("a measured point is the median of the steps after the warm-up") {
  Stage stage("exit 0");
  stage.script("ranks.sh", good_run(stage));
  const auto outcome = stage.run();
  REQUIRE(outcome.ok());
  INFO(outcome->why);
  CHECK(outcome->status == "ok");
  CHECK(outcome->runs == "lancet");
  CHECK(outcome->parts == 2);
  CHECK(outcome->steps == 3);
  CHECK(outcome->times.step == 20);
  CHECK(outcome->times.compute == 8);
  CHECK(outcome->times.exposed == 3);
  CHECK(outcome->times.communication == 6);
  CHECK(outcome->predicted_ms == 19.0);
  CHECK(outcome->predicted_compute_ms.value() > 1);  // of the plan
  CHECK(outcome->predicted_communication_ms.value() > 0);
  CHECK(outcome->least_step_ms == 10.0);
  CHECK(outcome->most_step_ms == 30.0);
  CHECK(outcome->imbalance == 1.5);
  CHECK(outcome->memory_gib > 0);
  CHECK(outcome->place.find(processor_name()) == 0);
  CHECK(stage.text_of("calls").find("2 lancet profile small.json --set overlap.policy=lancet ") == 0);
  CHECK(stage.text_of("calls").find("train.steps=4") != std::string::npos);
}

TEST_CASE("the communication time is taken from the record, also if all of it is hidden") {
  Stage stage("exit 0");
  stage.script("ranks.sh", good_run(stage, ", \\\"communication_ms\\\": 5"));
  const auto outcome = stage.run();
  REQUIRE(outcome.ok());
  INFO(outcome->why);
  CHECK(outcome->times.communication == 5);
  const auto record = test::json_in(to_line(stage.experiment, stage.experiment.points[0], *outcome, "1"));
  CHECK(record["communication_ms"] == 5);
  CHECK(record["least_step_ms"] == 10);
  CHECK(record["most_step_ms"] == 30);
  CHECK(record["imbalance"] == 1.5);
  CHECK(record["predicted_communication_ms"] > 0);
}

TEST_CASE("measured costs are kept per emulated rate, and removed for the experiment's own points") {
  Stage stage("exit 1", "echo \"$@\" >>\"$(dirname \"$0\")/calls\"; exit 1");
  Point& point = stage.experiment.points[0];
  point.source = Source::emulated, point.hosts = 2;
  const std::filesystem::path folder = stage.launcher.folder;
  for (const char* rate : {"200mbit", "1gbit"}) {
    stage.experiment.rate = rate;
    REQUIRE(stage.run().ok());
    CHECK(stage.text_of("calls").find("overlap.profile=" + (folder / "profile-").string() + rate + "-2-ranks.json") !=
          std::string::npos);
    CHECK(test::json_in(to_line(stage.experiment, point, Outcome(), "1"))["rate"] == rate);
  }
  for (const char* name : {"profile-2-ranks.json", "profile-200mbit-2-ranks.json", "profile-1gbit-2-ranks.json"})
    REQUIRE(write_file(folder / name, "{}").ok());
  REQUIRE(drop_costs(stage.experiment, stage.launcher).ok());
  CHECK_FALSE(std::filesystem::exists(folder / "profile-1gbit-2-ranks.json"));
  CHECK(std::filesystem::exists(folder / "profile-200mbit-2-ranks.json"));
  CHECK(std::filesystem::exists(folder / "profile-2-ranks.json"));
  point.source = Source::measured;
  CHECK_FALSE(test::json_in(to_line(stage.experiment, point, Outcome(), "1")).contains("rate"));
  REQUIRE(drop_costs(stage.experiment, stage.launcher).ok());
  CHECK_FALSE(std::filesystem::exists(folder / "profile-2-ranks.json"));
  CHECK(drop_costs(stage.experiment, stage.launcher).ok());  // no file to remove
}

TEST_CASE("a run without a plan or steps is recorded as failed, with the reason") {
  Stage stage("exit 0");
  const std::string run = good_run(stage);
  stage.script("ranks.sh", run + "\n[ \"$3\" != train ] || echo nonsense >\"$5/plan.ir\"");
  const auto no_plan = stage.run();
  REQUIRE(no_plan.ok());
  CHECK(no_plan->status == "failed");
  CHECK(no_plan->why.find("expected") != std::string::npos);
  stage.script("ranks.sh", run + "\n[ \"$3\" != train ] || : >\"$5/metrics.jsonl\"");
  const auto no_steps = stage.run();
  REQUIRE(no_steps.ok());
  CHECK(no_steps->status == "failed");
  CHECK(no_steps->why.find("expected steps after 1 of warm-up, found none") != std::string::npos);
}

TEST_CASE("a failed run is an outcome with its code and line") {
  const Stage stage("echo starting; echo 'error: a rank left'; echo bye; exit 5");
  const auto outcome = stage.run();
  REQUIRE(outcome.ok());
  CHECK(outcome->status == "failed");
  CHECK(outcome->exit_code == 5);
  CHECK(outcome->why == "exit code 5: error: a rank left");
  Stage none("");
  none.launcher.ranks_script = "no-such-script";
  const auto missing = none.run();
  REQUIRE(missing.ok());
  CHECK(missing->why.find("cannot start no-such-script: ") == 0);
}

TEST_CASE("a run that hangs is killed and recorded with its last line") {
  Stage stage("echo step 1; echo step 2; exec sleep 1000");
  // On a machine that is too busy for its lines, the run gets more time.
  Result<Outcome> outcome = Outcome();
  for (stage.launcher.timeout_s = 0.5; stage.launcher.timeout_s < 40; stage.launcher.timeout_s *= 2) {
    outcome = stage.run();
    REQUIRE(outcome.ok());
    if (outcome->why.ends_with("step 2")) break;
  }
  CHECK(outcome->status == "failed");
  CHECK(outcome->exit_code == 0);
  CHECK(outcome->why ==
        fmt::format("killed after {:g} s (--timeout); its last line: step 2", stage.launcher.timeout_s));
}

TEST_CASE("a signal stops the current run") {
  Stage stage("exec sleep 1000");
  std::atomic<int> stop{0};
  stage.launcher.stop = &stop;
  std::thread signal([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    stop = SIGTERM;
  });
  const auto outcome = stage.run();
  signal.join();
  REQUIRE_FALSE(outcome.ok());
  CHECK(outcome.error().code == ExitCode::saved);
}

TEST_CASE("the cluster is set up with the hosts and the rate, and its error is one line") {
  Stage stage("", "echo \"$@\" >>\"$(dirname \"$0\")/calls\"");
  CHECK(start_cluster(stage.experiment, stage.launcher).ok());
  CHECK(stage.text_of("calls").empty());  // no cluster is emulated
  stage.experiment.points[0].source = Source::emulated;
  stage.experiment.points[0].hosts = 2;
  CHECK(start_cluster(stage.experiment, stage.launcher).ok());
  end_cluster(stage.launcher);
  CHECK(stage.text_of("calls") == "up --hosts 2 --rate 200mbit\ndown\n");
  stage.script("cluster.sh", "echo 'error: cannot emulate a cluster here: expected root, found user x' >&2; exit 77");
  const Status refused = start_cluster(stage.experiment, stage.launcher);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ExitCode::config);
  CHECK(refused.error().message.find("cannot set up a cluster of 2 hosts") != std::string::npos);
  CHECK(refused.error().message.find("expected root, found user x") != std::string::npos);
}

TEST_CASE("a cluster that was not removed is reported") {
  const Stage stage("", "echo \"error: expected no namespace, found $1\" >&2; exit 2");
  test::LogCapture log;
  end_cluster(stage.launcher);
  CHECK(log.count("warning: cannot take the emulated cluster down (" + stage.launcher.cluster_script +
                  " down): exit code 2: error: expected no namespace, found down") == 1);
  stage.script("cluster.sh", "exit 0");
  end_cluster(stage.launcher);
  CHECK(log.count("") == 1);
}

TEST_CASE("processes that the cluster's script could not end are reported") {
  const TemporaryFolder folder;
  auto stand_in = [&](const std::string& name, const std::string& text) {
    std::filesystem::permissions(folder.write(name, "#!/bin/sh\n" + text + "\n"), std::filesystem::perms::owner_all);
  };
  stand_in("id", "echo 0");
  stand_in("ip",
           "[ \"$*\" != 'netns list' ] || printf 'stays-head\\nstays0 (id: 1)\\nother0\\n'; [ \"$2\" != delete ]");
  const std::string down =
      "PATH=" + (folder / "") + ":$PATH LANCET_CLUSTER=stays " LANCET_SOURCE_DIR "/scripts/emulate-cluster.sh down";
  const auto stays = test::shell(down);
  CHECK(stays.output == "error: cannot remove these network namespaces of cluster 'stays': stays-head, stays0\n");
  CHECK(stays.code == 2);
  stand_in("ip", "exit 0");
  CHECK(test::shell(down).code == 0);
}

TEST_CASE("a machine's label names cores, clock, governor and memory") {
  const std::string label = machine_label(1);
  INFO(label);
  CHECK(label.find(processor_name() + ", 1 of ") == 0);
  CHECK((label.find(" GHz, ") != std::string::npos || label.find("clock unknown") != std::string::npos));
  CHECK(label.find("governor ") != std::string::npos);
  CHECK(label.find(" GiB") != std::string::npos);
}

}  // namespace lancet
