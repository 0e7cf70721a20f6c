#include <fmt/format.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <thread>

#include "lancet/ir/plan.h"
#include "program.h"
#include "text.h"

namespace lancet {
namespace {

using test::lancet;
using test::TemporaryFolder;

std::string read(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The first line with these words, without what is before "memory".
std::string line_with(const std::string& output, const std::string& words) {
  std::istringstream in(output);
  for (std::string line; std::getline(in, line);)
    if (const auto at = line.find("memory  "); at != line.npos && line.find(words) != line.npos) return line.substr(at);
  return "";
}

// The banner's line of these bytes.
std::string banner_memory(const nlohmann::json& bytes) {
  double sum = 0;
  for (const auto& [part, value] : bytes.items()) sum += value.get<double>();
  const auto megabytes = [](double value) { return fmt::format("{:.1f} MB", value * 1e-6); };
  std::string line = fmt::format("memory     {} a rank:", megabytes(sum));
  for (const char* part : {"parameters", "optimizer", "arena", "workspace", "process", "saving"})
    line += fmt::format("{} {} {}", line.ends_with(':') ? "" : ",", part, megabytes(bytes.at(part).get<double>()));
  return line;
}

// Two ranks with MPI, else one.
test::Outcome train(const std::string& arguments) {
#if defined(LANCET_HAVE_MPI)
  return test::mpirun(2, arguments);
#else
  return lancet(arguments);
#endif
}

}  // namespace

TEST_CASE("a run writes its config, its plan and one record per step") {
  const TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config_text);
  const auto outcome =
      lancet("train " + config + " --set train.steps=5 --set train.save_interval=5 --run-dir " + (folder / "run"));
  INFO(outcome.output);
  REQUIRE(outcome.code == 0);
  CHECK(outcome.lines_with("step 5/5 | loss ") == 1);
  CHECK(outcome.lines_with((folder / "run") + ": config.json") == 1);
  const auto resolved = test::json_in(read(folder / "run/config.json"));
  CHECK(resolved["train"]["steps"] == 5);
  CHECK(resolved["train"]["optimizer"] == "adamw");
  const auto plan = ir::parse_plan(read(folder / "run/plan.ir"));
  REQUIRE(plan.ok());
  CHECK(ir::verify(*plan).ok());
  CHECK(plan->header.text("policy") == "sequential");
  const auto memory = test::json_in(read(folder / "run/memory.json"));
  CHECK(banner_memory(memory) == line_with(outcome.output, " a rank: "));
  const auto records = test::metrics(folder / "run");
  REQUIRE(records.size() == 5);
  CHECK(records[0]["step"] == 1);
  CHECK(records[0]["loss"].get<double>() == Approx(std::log(300)).epsilon(0.02));
  CHECK(records[4]["compute_ms"].get<double>() > 0);
  CHECK(records[4]["layer_load_max_over_mean"].at(0) == records[4]["load_max_over_mean"]);
  CHECK(records[4]["layer_drop_pct"] == std::vector<double>{0});
}

TEST_CASE("standard output carries the run's lines, standard error the warning of more threads than cores") {
  const TemporaryFolder folder;
  const int cores = int(std::thread::hardware_concurrency());
  const std::string train = LANCET_BINARY " train " + folder.write("small.json", test::small_config_text) +
                            " --set train.steps=1 --set threads=" + std::to_string(2 * cores) + " --run-dir ";
  const auto out = test::shell(train + (folder / "out") + " 2>/dev/null");
  REQUIRE(out.code == 0);
  CHECK(out.lines_with("policy     sequential: ") == 1);
  CHECK(out.lines_with("step 1/1 | loss ") == 1);
  CHECK(out.lines_with("warning: ") == 0);
  const auto error = test::shell(train + (folder / "error") + " >/dev/null");
  REQUIRE(error.code == 0);
  CHECK(error.lines_with("") == 1);
  CHECK(error.output.starts_with("warning: " + std::to_string(2 * cores) + " threads compute on "));
}

TEST_CASE("descriptors that are closed at the start become no file of the run") {
  const TemporaryFolder folder;
  const std::string train = LANCET_BINARY " train " + folder.write("small.json", test::small_config_text) +
                            " --set train.steps=3 --run-dir " + (folder / "run");
  const std::string closed = GENERATE("<&- >&-", ">&-", "<&- >&- 2>&-");
  const auto outcome = test::shell(train + " " + closed);
  CHECK(outcome.code == 3);
  if (closed != "<&- >&- 2>&-") CHECK(outcome.lines_with("error: cannot write standard output: ") == 1);
  std::ifstream in(folder / "run/metrics.jsonl");
  int lines = 0;
  for (std::string line; std::getline(in, line); ++lines) CHECK(test::json_in(line)["step"] == lines + 1);
  CHECK(lines == 3);
}

TEST_CASE("where the system gives no thread, an error says how many were wanted and what to change") {
  if (::geteuid() != 0) {
    WARN("SKIPPED: expected root, who may run the program as a user with a limit");
    return;
  }
  const TemporaryFolder folder;
  std::filesystem::permissions(folder / "", std::filesystem::perms::all);
  const auto outcome =
      test::shell("HOME=" + (folder / "") +
                  " setpriv --reuid 65534 --regid 65534 --clear-groups prlimit --nproc=1 " LANCET_BINARY " train " +
                  folder.write("small.json", test::small_config_text) +
                  " --set threads=3 --set log.peak_tflops=null --run-dir " + (folder / "run") + " >/dev/null");
  CHECK(outcome.code == 1);
  CHECK(
      outcome.lines_with("error: cannot start thread 2 of the 3 that compute: Resource temporarily unavailable; allow "
                         "more threads (ulimit -u, a container's pids.max) or compute with fewer (threads=1)") == 1);
}

TEST_CASE("the last --run-dir counts, and its name is one line") {
  const TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config_text);
  const std::string train = "train " + config + " --set train.steps=1 --run-dir ";
  REQUIRE(lancet(train + (folder / "first") + " --run-dir " + (folder / "last")).code == 0);
  CHECK(std::filesystem::exists(folder / "last/metrics.jsonl"));
  CHECK_FALSE(std::filesystem::exists(folder / "first"));
  const auto refused = lancet(train + "\"$(printf 'two\\nlines')\"");
  CHECK(refused.code == 2);
  CHECK(refused.output ==
        "error: log.run_dir (--run-dir): expected a name in UTF-8 without control characters, found 'two?lines'\n");
  const auto latin = lancet(train + "\"$(printf '/tmp/caf\\351')\"");  // e acute in Latin-1
  CHECK(latin.code == 2);
  CHECK(latin.output ==
        "error: log.run_dir (--run-dir): expected a name in UTF-8 without control characters, found "
        "'/tmp/caf\\xe9'\n");
  const auto missing = lancet("eval --data x --from \"$(printf 'no\\nrun')\"");
  CHECK(missing.code != 0);
  CHECK(missing.lines_with("") == 1);
  CHECK(missing.lines_with("no?run") == 1);
}

TEST_CASE("a model that cannot fit the memory is refused before it is planned") {
  const TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config_text);
  const auto outcome =
      lancet("train " + config + " --set model.n_layer=4000 --set model.n_embd=8192 --run-dir " + (folder / "run"));
  INFO(outcome.output);
  CHECK(outcome.code == 2);
  CHECK(outcome.lines_with("") == 1);
  CHECK(outcome.lines_with(" gradients, besides activations), found ") == 1);
}

TEST_CASE("configs and texts are read from pipes, but not from a pipe that nothing writes to") {
  const TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config_text), pipe = folder / "pipe";
  REQUIRE(test::shell("mkfifo " + pipe).code == 0);
  const auto refused = test::shell("timeout 20 " LANCET_BINARY " train " + pipe);
  CHECK(refused.code == 2);
  CHECK(refused.output == "error: " + pipe + ": expected a JSON config file, found no regular file\n");
  CHECK(test::shell("cat " + config + " | " LANCET_BINARY " train /dev/stdin --set train.steps=1 --run-dir " +
                    (folder / "run"))
            .code == 0);

  std::string text;
  for (int i = 0; i < 3000; ++i) text += "The quick brown fox number " + std::to_string(i % 97) + ".\n";
  const std::string book = folder.write("book.txt", text), from_pipe = "cat " + book + " | " LANCET_BINARY " data ";
  const std::string train = "train-tokenizer --vocab-size 300 --out ";
  const std::string tokenize = "tokenize --tokenizer " + (folder / "tok") + " --out ";
  REQUIRE(lancet("data " + train + (folder / "tok") + " " + book).code == 0);
  REQUIRE(test::shell(from_pipe + train + (folder / "piped") + " /dev/stdin").code == 0);
  CHECK(read(folder / "piped/merges.txt") == read(folder / "tok/merges.txt"));
  REQUIRE(lancet("data " + tokenize + (folder / "a.bin") + " " + book).code == 0);
  const auto piped = test::shell(from_pipe + tokenize + (folder / "b.bin") + " /dev/stdin");
  REQUIRE(piped.code == 0);
  CHECK(piped.lines_with(" tokens of 0.1 MB of text") == 1);
  CHECK(read(folder / "b.bin") == read(folder / "a.bin"));
  const auto held_out = test::shell(from_pipe + tokenize + (folder / "c.bin") + " --eval-out " + (folder / "d.bin") +
                                    " --eval-fraction 0.1 /dev/stdin");
  CHECK(held_out.code == 2);
  CHECK(held_out.lines_with("/dev/stdin: expected a file for a held-out part") == 1);
  CHECK(test::shell("true | " LANCET_BINARY " data " + tokenize + (folder / "c.bin") + " /dev/stdin").output ==
        "error: /dev/stdin: expected a text, found an empty stream\n");
}

#if defined(LANCET_HAVE_MPI)
TEST_CASE("four processes train and resume on data 2 x tensor 2 as one process trains") {
  const test::TemporaryFolder folder;
  const std::string train =
      "train " + folder.write("small.json", test::small_config_text) + " --set train.steps=4 --run-dir ";
  REQUIRE(test::lancet(train + (folder / "alone")).code == 0);
  const std::string split = " --set mesh.data=2 --set mesh.tensor=2 --set train.micro_batch_size=2";
  const auto outcome = test::mpirun(4, train + (folder / "mesh") + split);
  INFO(outcome.output);
  REQUIRE(outcome.code == 0);
  CHECK(outcome.lines_with("data 2 x tensor 2; rank r: data r / 2, tensor r % 2") == 1);
  REQUIRE(test::mpirun(4, train + (folder / "stopped") + split + " --set train.stop_after=2").code == 75);
  REQUIRE(test::mpirun(4, train + (folder / "stopped") + split).code == 0);
  const auto alone = test::metrics(folder / "alone"), mesh = test::metrics(folder / "mesh"),
             stopped = test::metrics(folder / "stopped");
  REQUIRE(alone.size() == 4);
  REQUIRE(mesh.size() == 4);
  REQUIRE(stopped.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(double(mesh[i]["loss"]) == Approx(double(alone[i]["loss"])).epsilon(1e-5));
    CHECK(stopped[i]["loss"] == mesh[i]["loss"]);
  }
}

TEST_CASE("dw and lancet train like sequential over MPI") {
  const TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config_text);
  const std::string common =
      "train " + config + " --set train.steps=6 --set overlap.profile=" + (folder / "costs.json");
  auto losses = [&](const std::string& name, const std::string& overlap) {
    const auto outcome = test::mpirun(2, common + overlap + " --run-dir " + (folder / name));
    INFO(outcome.output);
    REQUIRE(outcome.code == 0);
    return test::metrics(folder / name);
  };
  const auto expected = losses("sequential", "");
  for (const char* policy : {"dw", "lancet"}) {
    // The number of parts is forced: on one machine the planner may choose none.
    const bool parts = std::string(policy) != "dw";
    const auto found =
        losses(policy, std::string(" --set overlap.policy=") + policy + (parts ? " --set overlap.parts=2" : ""));
    INFO(policy);
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      CHECK(found[i]["loss"].get<double>() == Approx(expected[i]["loss"].get<double>()).epsilon(1e-6));
      CHECK(found[i]["drop_pct"] == expected[i]["drop_pct"]);
      if (!parts) CHECK(found[i]["loss"] == expected[i]["loss"]);
    }
    if (parts) CHECK(read(folder / policy + "/plan.ir").find("parts=2") != std::string::npos);
  }
}

#endif

TEST_CASE("from text to sample: tokenizer, tokens, training, generation") {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 3000; ++i)
    text += "The quick brown fox number " + std::to_string(i % 97) + " jumps over the lazy dog.\n";
  const std::string book = folder.write("book.txt", text);
  REQUIRE(lancet("data train-tokenizer --vocab-size 300 --out " + (folder / "tok") + " " + book).code == 0);
  REQUIRE(lancet("data tokenize --tokenizer " + (folder / "tok") + " --out " + (folder / "train.bin") + " --eval-out " +
                 (folder / "eval.bin") + " --eval-fraction 0.1 " + book)
              .code == 0);
  const std::string config = folder.write("small.json", test::small_config_text);
  const auto outcome =
      train("train " + config + " --set data.synthetic=false --set data.train=" + (folder / "train.bin") +
            " --set data.eval=" + (folder / "eval.bin") + " --set data.tokenizer=" + (folder / "tok") +
            " --set train.steps=60 --set train.micro_batch_size=8 --set train.lr=5e-3 --set train.sample_tokens=8"
            " --set train.sample_prompt='The quick' --run-dir " +
            (folder / "run"));
  INFO(outcome.output);
  REQUIRE(outcome.code == 0);
  CHECK(outcome.lines_with("held-out loss") >= 1);
  CHECK(outcome.lines_with("sample: The quick") == 1);
  const auto records = test::metrics(folder / "run");
  CHECK(records.back()["loss"].get<double>() < records.front()["loss"].get<double>() - 2);
}

TEST_CASE("a run that is stopped saves, logs it, and resumes when it is started again") {
  const TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config_text), run = folder / "run";
  const std::string signal = GENERATE("TERM", "INT", "USR1");
  const std::string command = LANCET_BINARY " train " + config + " --set log.interval=100000 --run-dir " + run;
  // Steps for about a minute, in case the signal fails. (A background shell ignores SIGINT, hence env.)
  const auto outcome =
      test::shell("env --default-signal=INT " + command + " --set train.steps=100000 & p=$!; while ! [ -s " + run +
                  "/metrics.jsonl ]; do sleep 0.05; done; kill -" + signal + " $p; wait $p; exit $?");
  INFO(outcome.output);
  CHECK(outcome.code == 75);
  CHECK(outcome.lines_with("SIG" + signal + ": saving and stopping") == 1);
  CHECK(outcome.lines_with("(SIG" + signal + "); the same command resumes from there") == 1);
  const std::size_t done = test::metrics(run).size();
  CHECK(done >= 1);
  const auto again = test::shell(command + " --set train.steps=" + std::to_string(done + 2));
  INFO(again.output);
  CHECK(again.code == 0);
  CHECK(again.lines_with("resume     after step " + std::to_string(done) + " from ") == 1);
  CHECK(test::metrics(run).size() == done + 2);
}

TEST_CASE("a second signal stops a run at once, and the first signal other commands") {
  const TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config_text), run = folder / "run";
  // The step takes a minute, so that the first signal is not answered before the second.
  const auto outcome =
      test::shell(LANCET_BINARY " train " + config + " --set train.gradient_accumulation_steps=100000 --run-dir " +
                  run + " & p=$!; while ! [ -e " + run +
                  "/metrics.jsonl ]; do sleep 0.05; done; sleep 0.2; kill -TERM $p; sleep 0.2; kill -TERM $p; "
                  "wait $p; exit $?");
  INFO(outcome.output);
  CHECK(outcome.code == 143);
  CHECK(outcome.lines_with("SIGTERM: saving and stopping") == 1);
  CHECK(outcome.lines_with("error: stopped by SIGTERM before the end") == 1);
  const auto data = test::shell(LANCET_BINARY " bench ops --steps 100000 " + config +
                                " & p=$!; sleep 1; kill -TERM $p; wait $p; exit $?");
  CHECK(data.code == 143);
  CHECK(data.lines_with("error: stopped by SIGTERM before the end") == 1);
}

TEST_CASE("a full disk: the run continues without checkpoints and warns once per failed save") {
  const TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config_text), run = folder / "run";
  // No file may grow beyond 100 blocks of 1024 bytes; the optimizer's shard needs more.
  const auto outcome = test::shell("trap '' XFSZ; ulimit -f 100; " LANCET_BINARY " train " + config +
                                   " --set train.save_interval=5 --set train.steps=12 --run-dir " + run);
  INFO(outcome.output);
  CHECK(outcome.code == 3);  // the last save failed
  CHECK(test::metrics(run).size() == 12);
  CHECK(outcome.lines_with("was not saved, older checkpoints stay: ") == 3);
  CHECK(outcome.lines_with("cannot write: File too large") >= 3);
  CHECK(std::filesystem::is_empty(run + "/checkpoints"));
}

#if defined(LANCET_HAVE_MPI)
TEST_CASE("SIGUSR1 to mpirun, and SIGTERM and SIGINT to scripts/mpirun.sh, save and stop all ranks") {
  const TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config_text), run = folder / "run";
  const std::string arguments =
      " " LANCET_BINARY " train " + config + " --set train.steps=60000 --set log.interval=100000 --run-dir " + run;
  const auto [launcher, signal] = GENERATE(table<std::string, std::string>(
      {{"exec mpirun --allow-run-as-root --oversubscribe --bind-to none -np 2", "USR1"},
       {"exec " LANCET_SOURCE_DIR "/scripts/mpirun.sh 2", "TERM"},
       {"exec env --default-signal=INT " LANCET_SOURCE_DIR "/scripts/mpirun.sh 2", "INT"}}));
  const auto outcome = test::shell("(" + launcher + arguments + ") & p=$!; while ! [ -s " + run +
                                   "/metrics.jsonl ]; do sleep 0.05; done; kill -" + signal + " $p; wait $p; exit $?");
  INFO(outcome.output);
  CHECK(outcome.code == 75);
  CHECK(outcome.lines_with("saved and stopped after step ") == 1);
  const auto again =
      test::mpirun(2, "train " + config + " --set train.stop_after=" + std::to_string(test::metrics(run).size() + 3) +
                          " --set train.steps=60000 --run-dir " + run);
  INFO(again.output);
  CHECK(again.code == 75);
  CHECK(again.lines_with("(train.stop_after); the same command resumes") == 1);
}
#endif

TEST_CASE("help lists the main commands and options") {
  CHECK(lancet("--help").lines_with("mpirun -np 2 lancet train") >= 1);
  CHECK(lancet("train --help").lines_with("capacity_factor") >= 1);
  for (const char* command :
       {"--help", "train --help", "data --help", "data encode --help", "data tokenize --help",
        "data train-tokenizer --help", "bench --help", "bench ops --help", "bench network --help", "--version"})
    CHECK(lancet(command).code == 0);
  CHECK(lancet("data train-tokenizer --help").lines_with("UTF-8 text files") == 1);
}

}  // namespace lancet
