// Signals to the launcher or to one rank, in a step or in an evaluation: the run saves, exits with code 75 and resumes
// bit for bit.
#if defined(LANCET_HAVE_MPI)
#include <catch2/catch.hpp>

#include "cli/support.h"
#include "processes.h"

namespace lancet {
namespace {

using std::chrono::steady_clock;
using test::Job;
using test::TemporaryFolder;

// A run that ends within minutes, in case the signal fails.
std::string long_run(const TemporaryFolder& folder) {
  return "train " + folder.write("small.json", test::small_config_text) +
         " --set train.steps=60000 --set log.interval=100000";
}

bool has_record(const std::string& run) { return test::slurp(run + "/metrics.jsonl").ends_with("}\n"); }

std::vector<double> losses(const std::string& run) {
  std::vector<double> values;
  for (const auto& record : test::metrics(run)) values.push_back(record["loss"]);
  return values;
}

// Resumes for three steps and compares the result with an undisturbed run.
void check_goes_on(const std::string& command, const TemporaryFolder& folder, const std::string& run, int ranks) {
  const std::size_t done = losses(run).size(), stop = done + 3;
  const std::string until = " --set train.stop_after=" + std::to_string(stop);
  const auto again = test::shell(test::ranks_of(ranks, command + until + " --run-dir " + run));
  INFO(again.output);
  CHECK(again.code == 75);
  CHECK(again.lines_with("resume     after step " + std::to_string(done) + " from ") == 1);
  const std::string undisturbed = folder / "undisturbed";
  REQUIRE(test::shell(test::ranks_of(ranks, command + until + " --run-dir " + undisturbed)).code == 75);
  CHECK(losses(run).size() == stop);
  CHECK(losses(run) == losses(undisturbed));
}

}  // namespace

TEST_CASE("a signal to one rank of several: all save, exit with 75 and resume bit for bit") {
  const auto [ranks, victim, signal] =
      GENERATE(table<int, int, int>({{1, 0, SIGPIPE}, {2, 1, SIGHUP}, {4, 2, SIGTERM}}));
  const TemporaryFolder folder;
  const std::string run = folder / "run", command = long_run(folder);
  Job job("exec env --default-signal=INT " + test::ranks_of(ranks, command + " --run-dir " + run));
  CHECK(test::wait_until([&] { return has_record(run); }));
  const auto pids = test::ranks_with(run);
  REQUIRE(pids.size() == std::size_t(ranks));
  const auto start = steady_clock::now();
  CHECK(kill(pids[std::size_t(victim)], signal) == 0);
  double took = 0;
  const auto outcome = job.end(start, took);
  INFO(outcome.output);
  CHECK(outcome.code == 75);
  CHECK(outcome.lines_with("saved and stopped after step ") == 1);
  check_goes_on(command, folder, run, ranks);
}

TEST_CASE("a signal while the profile is measured ends the run with code 75, and the same command resumes") {
  const int victim = GENERATE(0, 1);
  const TemporaryFolder folder;
  const std::string run = folder / "run", log = folder / "log", costs = folder / "costs.json";
  const std::string command = test::ranks_of(
      2, long_run(folder) + " --set overlap.policy=lancet --set overlap.max_parts=2 --set overlap.profile=" + costs +
             " --run-dir " + run);
  Job job(command + " > " + log + " 2>&1");
  CHECK(test::wait_until([&] { return test::slurp(log).find("profile: measuring ") != std::string::npos; }));
  const auto pids = test::ranks_with(run);
  REQUIRE(pids.size() == 2);
  const auto start = steady_clock::now();
  CHECK(kill(pids[std::size_t(victim)], SIGTERM) == 0);
  double took = 0;
  const int code = job.end(start, took).code;
  const test::Outcome outcome{code, test::slurp(log)};
  INFO(outcome.output);
  CHECK(code == 75);
  CHECK(outcome.lines_with("stopped before step 1 (") == 1);
  CHECK(outcome.lines_with("while the profile was measured") == 1);
  CHECK_FALSE(std::filesystem::exists(run + "/metrics.jsonl"));
  const auto again = test::shell(command + " --set train.stop_after=1");
  INFO(again.output);
  CHECK(again.code == 75);
  CHECK(again.lines_with("profile: measured ") == 1);
  CHECK(losses(run).size() == 1);
}

TEST_CASE("a signal in an evaluation of several ranks: the step before is saved, exit code 75") {
  const int victim = GENERATE(0, 1);
  const TemporaryFolder folder;
  const std::string run = folder / "run", file = test::long_token_file(folder, 300);
  const std::string command = long_run(folder) + " --set data.synthetic=false --set data.train=" + file +
                              " --set data.eval=" + file + " --set data.eval_sequences=1000000";
  Job job(test::ranks_of(2, command + " --set train.eval_interval=1 --run-dir " + run));
  CHECK(test::wait_until([&] { return has_record(run); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const auto pids = test::ranks_with(run);
  REQUIRE(pids.size() == 2);
  const auto start = steady_clock::now();
  CHECK(kill(pids[std::size_t(victim)], SIGTERM) == 0);
  double took = 0;
  const auto outcome = job.end(start, took);
  INFO(outcome.output);
  CHECK(outcome.code == 75);
  CHECK(took < 60);  // the evaluation takes minutes
  CHECK(outcome.lines_with("saved and stopped after step 1 of ") == 1);
  CHECK(outcome.lines_with("held-out") == 0);
  check_goes_on(command, folder, run, 2);
}

TEST_CASE("a second signal to the launcher's script ends ranks in an endless step") {
  const TemporaryFolder folder;
  const std::string run = folder / "run", pid = folder / "pid", log = folder / "log";
  Job job("echo $$ > " + pid + "; exec " +
          test::ranks_of(2, long_run(folder) + " --set train.gradient_accumulation_steps=1000000 --run-dir " + run) +
          " > " + log + " 2>&1");
  CHECK(test::wait_until([&] { return std::filesystem::exists(run + "/metrics.jsonl"); }));
  const pid_t script = std::stoi(test::slurp(pid));
  const auto ranks = test::ranks_with(run);
  REQUIRE(ranks.size() == 2);
  CHECK(test::wait_until_worked(ranks, 0.2));  // in the step
  CHECK(kill(script, SIGTERM) == 0);
  const std::string heard = "saving and stopping after this step";
  CHECK(test::wait_until([&] { return test::slurp(log).find(heard) != std::string::npos; }));
  CHECK(test::ranks_with(run).size() == 2);
  const auto start = steady_clock::now();
  CHECK(kill(script, SIGTERM) == 0);
  double took = 0;
  const int code = job.end(start, took).code;
  const test::Outcome outcome{code, test::slurp(log)};
  INFO(outcome.output);
  CHECK(took < 60);  // the step takes hours
  CHECK(code != 0);
  CHECK(code != 75);
  CHECK(outcome.lines_with(heard) == 1);
  CHECK(test::ranks_with(run).empty());
}

TEST_CASE("a signal to the launcher's script before its ranks have started is not lost") {
  const std::string seconds = GENERATE("0.03", "0.1", "0.6");
  const TemporaryFolder folder;
  const std::string run = folder / "run";
  const auto start = steady_clock::now();
  const auto outcome = test::shell(test::ranks_of(2, long_run(folder) + " --run-dir " + run) + " & p=$!; sleep " +
                                   seconds + "; kill -TERM $p; wait $p");
  INFO(outcome.output);
  CHECK(test::Seconds(steady_clock::now() - start).count() < 60);  // the run takes minutes
  CHECK(outcome.code != 0);
  CHECK(outcome.code != 5);
  CHECK(test::wait_until([&] { return test::ranks_with(run).empty(); }));
}

TEST_CASE("a signal to mpirun itself leaves no broken file") {
  const int signal = GENERATE(SIGTERM, SIGINT);
  const TemporaryFolder folder;
  const std::string run = folder / "run", pid = folder / "pid", command = long_run(folder) + " --run-dir " + run;
  Job job(
      "echo $$ > " + pid +
      "; exec env --default-signal=INT mpirun --allow-run-as-root --oversubscribe --bind-to none -np 2 " LANCET_BINARY
      " " +
      command + " --set train.save_interval=5");
  CHECK(test::wait_until([&] { return std::filesystem::exists(run + "/checkpoints/step-000005"); }));
  const auto start = steady_clock::now();
  CHECK(kill(std::stoi(test::slurp(pid)), signal) == 0);
  double took = 0;
  const auto outcome = job.end(start, took);
  INFO(outcome.output);
  CHECK(took < 60);  // the run takes minutes
  CHECK(outcome.code != 0);
  CHECK(test::wait_until([&] { return test::ranks_with(run).empty(); }));
  const auto again = test::shell(
      test::ranks_of(2, command + " --set train.stop_after=" + std::to_string(test::metrics(run).size() + 20)));
  INFO(again.output);
  CHECK(again.code == 75);
  CHECK(again.lines_with("resume     after step ") == 1);
  CHECK(again.lines_with("not whole") == 0);
}

}  // namespace lancet
#endif
