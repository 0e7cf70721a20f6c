// A rank that dies or hangs in any phase of a run: the others exit soon, with code 5, and name the rank that they
// waited for.
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

constexpr double seconds_to_leave = 60;  // 2 s on an idle machine; a rank that waits for a timeout takes 300 s

// A step without end: every wait is in one of the plan's instructions.
std::string endless_step(const TemporaryFolder& folder, const std::string& run) {
  return "train " + folder.write("small.json", test::small_config_text) +
         " --set train.gradient_accumulation_steps=1000000 --run-dir " + run;
}

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
  const std::string line =
      "stream (expert|reduce): \\[[0-9]+\\] [a-z_]+ at [a-z0-9_.@]+: [a-z_]+ #[0-9]+ of [0-9]+ bytes on "
      "\"(expert|reduce)\" \\(rank [0-3] of " +
      std::to_string(ranks) + "\\): waited for rank " + std::to_string(victim) + ", which ended without it\n";
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
  const std::string line =
      "stream (expert|reduce): \\[[0-9]+\\] [a-z_]+ at [a-z0-9_.@]+: [a-z_]+ #[0-9]+ of [0-9]+ bytes on "
      "\"(expert|reduce)\" \\(rank [0-3] of " +
      std::to_string(ranks) + "\\): timed out after 3 s: (nothing came from ranks? [0-3, ]*" + others +
      "|ranks? [0-3, ]*" + others + " did not take what was sent)";
  CHECK(test::matches(outcome.output, line));
}

TEST_CASE("a rank killed in an evaluation of a run: code 5") {
  const TemporaryFolder folder;
  const std::string run = folder / "run", tokens = test::long_token_file(folder, 300);
  const auto outcome = hit(
      test::ranks_of(2, "train " + folder.write("small.json", test::small_config_text) +
                            " --set data.synthetic=false --set data.train=" + tokens + " --set data.eval=" + tokens +
                            " --set train.eval_interval=1 --set data.eval_sequences=1000000 --run-dir " + run),
      run, 2, 1, SIGKILL, [&] { return test::slurp(run + "/metrics.jsonl").ends_with("}\n"); });
  INFO(outcome.output);
  CHECK(outcome.code == 5);
  CHECK(test::metrics(run).size() == 1);
  CHECK(outcome.lines_with("(rank 0 of 2): waited for rank 1, which ended without it") == 1);
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

TEST_CASE("a rank of eval or generate that is killed: code 5") {
  const TemporaryFolder folder;
  const std::string run = folder / "run";
  REQUIRE(test::lancet("import --from " LANCET_SOURCE_DIR "/tests/reference/hugging_face/gpt2_moe --out " + run).code ==
          0);
  int victim = 0;
  std::string command;
  double work = 0.2;
  SECTION("eval") {
    victim = 1;
    command = test::ranks_of(2, "eval --from " + run + " --data " + test::long_token_file(folder, 71));
  }
  SECTION("generate, which waits for its prompt") {
    work = 0;                                  // both ranks wait
    const std::string pipe = folder / "pipe";  // also open for writing, so that reading it never ends
    command = "mkfifo " + pipe + "; " + test::ranks_of(2, "generate --ids --from " + run) + " <>" + pipe;
  }
  const auto rather_late = [&] {  // any moment will do; this one is probably after the start
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    return true;
  };
  const auto outcome = hit(command, run, 2, victim, SIGKILL, rather_late, work);
  INFO(outcome.output);
  CHECK(outcome.code == 5);
}

}  // namespace lancet
#endif
