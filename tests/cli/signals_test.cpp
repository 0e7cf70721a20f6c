// Signals to the launcher or to one rank in a step: the run saves, exits with code 75 and resumes bit for bit. Ranks
// that are killed or hang: code 5, soon.
#if defined(LANCET_HAVE_MPI)
#include <catch2/catch.hpp>

#include "cli/support.h"
#include "processes.h"
#include "text.h"

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

// A rank that dies or hangs in any phase of a run: the others exit soon, with code 5, and name the rank that they
// waited for.

namespace {

constexpr double seconds_to_leave = 60;  // 2 s on an idle machine; a rank that waits for a timeout takes 300 s

// A step without end. Its waits are in the plan's instructions, or, seldom, before a further run of the plan.
std::string endless_step(const TemporaryFolder& folder, const std::string& run) {
  return "train " + folder.write("small.json", test::small_config_text) +
         " --set train.gradient_accumulation_steps=1000000 --run-dir " + run;
}

const std::string waiting_operation =
    "(stream (expert|reduce): \\[[0-9]+\\] [a-z_]+ at [a-z0-9_.@]+: [a-z_]+ #[0-9]+ of [0-9]+ bytes on "
    "\"(expert|reduce)\"|the inputs of step 1: [a-z_]+ #[0-9]+ of 4 bytes on \"world\") ";

bool has_begun(const std::string& run) { return std::filesystem::exists(run + "/metrics.jsonl"); }

// Returns how a job of `ranks` ends after rank `victim` gets `signal`, which is sent that many seconds of work after
// `ready`.
test::Outcome hit(const std::string& command, const std::string& word, int ranks, int victim, int signal,
                  const std::function<bool()>& ready, double work = 0.2) {
  Job job(command);
  CHECK(test::wait_until([&] { return ready() && test::ranks_with(word).size() == std::size_t(ranks); }));
  const auto pids = test::ranks_with(word);
  REQUIRE(pids.size() == std::size_t(ranks));
  CHECK(test::wait_until_worked(pids, work));
  const auto start = steady_clock::now();
  CHECK(kill(pids[std::size_t(victim)], signal) == 0);
  double took = 0;
  const auto outcome = job.end(start, took);
  CHECK(took < seconds_to_leave);
  CHECK(test::ranks_with(word).empty());
  return outcome;
}

}  // namespace

TEST_CASE("a rank killed in a step: code 5 soon, and the error names the waiting rank and operation") {
  const auto [ranks, victim] = GENERATE(table<int, int>({{2, 0}, {4, 3}}));
  const TemporaryFolder folder;
  const std::string run = folder / "run";
  const auto outcome = hit(test::ranks_of(ranks, endless_step(folder, run)), run, ranks, victim, SIGKILL,
                           [&] { return has_begun(run); });
  INFO(outcome.output);
  CHECK(outcome.code == 5);
  CHECK(outcome.lines_with("a rank was ended by signal 9") == 1);
  const std::string line = waiting_operation + "\\(rank [0-3] of " + std::to_string(ranks) + "\\): waited for rank " +
                           std::to_string(victim) + ", which ended without it\n";
  CHECK(test::matches(outcome.output, line));
}

TEST_CASE("a stage's rank killed in a step: all other stages end with code 5 soon") {
  const int victim = GENERATE(0, 1);
  const TemporaryFolder folder;
  const std::string run = folder / "run";
  const auto outcome = hit(test::ranks_of(3, endless_step(folder, run) + " --set mesh.stage=3 --set model.n_layer=4"),
                           run, 3, victim, SIGKILL, [&] { return has_begun(run); });
  INFO(outcome.output);
  CHECK(outcome.code == 5);
  CHECK(outcome.lines_with("a rank was ended by signal 9") == 1);
  CHECK(test::matches(outcome.output, "waited for rank " + std::to_string(victim) + ", which ended without it\n"));
}

TEST_CASE("a hanging rank: code 5 after comm.timeout_s, and the error names the waiting rank and operation") {
  const auto [ranks, victim] = GENERATE(table<int, int>({{2, 1}, {4, 0}}));
  const TemporaryFolder folder;
  const std::string run = folder / "run";
  const auto outcome = hit(test::ranks_of(ranks, endless_step(folder, run) + " --set comm.timeout_s=3"), run, ranks,
                           victim, SIGSTOP, [&] { return has_begun(run); });
  INFO(outcome.output);
  CHECK(outcome.code == 5);
  // With four ranks, the first report may come from a rank that waits for another waiting rank.
  const std::string others = ranks == 2 ? std::to_string(victim) : "[0-3]";
  const std::string line = waiting_operation + "\\(rank [0-3] of " + std::to_string(ranks) +
                           "\\): timed out after 3 s: (nothing came from ranks? [0-3, ]*" + others +
                           "|ranks? [0-3, ]*" + others + " did not take what was sent)";
  CHECK(test::matches(outcome.output, line));
}

TEST_CASE("a rank killed before its first message: code 5") {
  const TemporaryFolder folder;
  const std::string run = folder / "run", config = folder.write("small.json", test::small_config_text);
  const std::string when = GENERATE("", "sleep 0.5; ");
  const auto start = steady_clock::now();
  const auto outcome =
      test::shell(LANCET_SOURCE_DIR "/scripts/mpirun.sh 2 sh -c 'if [ $OMPI_COMM_WORLD_RANK = 1 ]; then " + when +
                  "kill -9 $$; fi; exec " LANCET_BINARY " train " + config + " --run-dir " + run + "'");
  INFO(outcome.output);
  CHECK(outcome.code == 5);
  CHECK(test::Seconds(steady_clock::now() - start).count() < 0.5 + seconds_to_leave);
  CHECK(outcome.lines_with("a rank was ended by signal 9") == 1);
  CHECK_FALSE(has_begun(run));
}

TEST_CASE("an mpirun that locks itself up after its ranks have ended does not last, one that works does", "[long]") {
  const auto [ends, code] =
      GENERATE(table<std::string, int>({{"subprocess.Popen('true'); lock.acquire()", 5},
                                        {"subprocess.Popen('true'); time.sleep(25)", 0},
                                        {"subprocess.Popen(['sleep', '25']); lock.acquire(timeout=25)", 0}}));
  const TemporaryFolder folder;
  const std::string mpirun =
      folder.write("mpirun",
                   "#!/usr/bin/env python3\nimport subprocess, threading, time\nlock = threading.Lock()\n"
                   "lock.acquire()\n" +
                       ends + "\n");
  const auto start = steady_clock::now();
  const auto outcome = test::shell("chmod +x " + mpirun + "; PATH=$(dirname " + mpirun +
                                   "):$PATH " LANCET_SOURCE_DIR "/scripts/mpirun.sh 2 true");
  INFO(outcome.output);
  CHECK(outcome.code == code);
  CHECK(outcome.lines_with("mpirun locked itself up") == (code == 0 ? 0 : 1));
  CHECK(test::Seconds(steady_clock::now() - start).count() < seconds_to_leave);
}

TEST_CASE("a missing program is not reported as a rank that a signal ended") {
  const auto outcome = test::shell(LANCET_SOURCE_DIR "/scripts/mpirun.sh 2 /no/such/program train");
  CHECK(outcome.code == 2);
  CHECK(outcome.output == "error: expected a program to run, found none called /no/such/program\n");
}

}  // namespace lancet
#endif
