// Wrong command lines of every command: one line that names the place, the expected and the found value; exit code 2.
#include <fcntl.h>
#include <spawn.h>
#include <sys/ioctl.h>

#include <catch2/catch.hpp>

#include "processes.h"
#include "program.h"

namespace lancet {
namespace {

void check_usage(const std::string& arguments, const std::string& where, const std::string& said) {
  const auto outcome = test::lancet(arguments);
  INFO(arguments << "\n" << outcome.output);
  CHECK(outcome.code == 2);
  CHECK(outcome.lines_with("") == 1);
  CHECK(outcome.output.starts_with("error: " + where + ": " + said));
}

// A command: whether it accepts one word, several or none, its first required option, and a number option with its
// range.
struct Command {
  std::string name;
  enum Words { none, one, several } words;
  std::string required, number, range;
};

const std::vector<Command> commands = {
    {"train", Command::one, "config", "", ""},
    {"plan", Command::one, "config", "--ranks", "a whole number from 1 to 65536"},
    {"place", Command::one, "config", "--time-limit", "a number from 0.001 to 86400"},
    {"profile", Command::one, "config", "--seconds", "a number from 0 to 3600"},
    {"report", Command::several, "runs", "", ""},
    {"eval", Command::none, "--from", "--threads", "a whole number from 0 to 1024"},
    {"generate", Command::none, "--from", "--max-tokens", "a whole number from 0 to 1099511627776"},
    {"export", Command::none, "--to", "--max-shard-gb", "a number from 0 to 1000000"},
    {"import", Command::none, "--from", "--upcycle", "a whole number from 2 to 65536"},
    {"data encode", Command::none, "--tokenizer", "", ""},
    {"data tokenize", Command::several, "texts", "--threads", "a whole number from 1 to 1024"},
    {"data train-tokenizer", Command::several, "texts", "--vocab-size", "a whole number from 257 to 2147483647"},
    {"bench ops", Command::one, "config", "--steps", "a whole number from 1 to 100000"},
    {"bench network", Command::none, "", "--max-mb", "a number from 0.001 to 1000"},
    {"bench network", Command::none, "", "--gaps", "a number from 0 to 60000"},
    {"bench network", Command::none, "", "--repeats", "a whole number from 1 to 10000"},
};

}  // namespace

TEST_CASE("wrong command lines of every command") {
  for (const auto& [name, words, required, number, range] : commands) {
    const std::string where = "lancet " + name;
    check_usage(name + " --helpp x", where, "expected one of its options, found '--helpp'; see " + where + " --help");
    check_usage(name + " --qqqqqqqqqq=3 x", where, "expected one of its options, found '--qqqqqqqqqq=3'; see " + where);
    if (!required.empty()) check_usage(name, where, required + " is required; see " + where + " --help");
    // Required options are checked first.
    const std::string rest = name == "place" ? " --on x" : "";
    if (words == Command::one)
      check_usage(name + rest + " a 'b c'", where, "The following argument was not expected: b c; see");
    if (number.empty()) continue;
    const std::string given = words == Command::none ? "" : " x" + rest;
    for (const std::string wrong : {"many", "1e400", "nan", "3x", "-5"}) {
      const std::string required_others = name == "export"                       ? " --to hf --from a --out b"
                                          : name == "import"                     ? " --from a --out b"
                                          : name == "data train-tokenizer"       ? " --out b"
                                          : name == "data tokenize"              ? " --tokenizer t --out b"
                                          : name == "eval" || name == "generate" ? " --from a"
                                                                                 : "";
      check_usage(name + given + required_others + " " + number + " " + wrong, where,
                  number + ": expected " + range + ", found '" + wrong + "'");
    }
  }
}

TEST_CASE("words that no command accepts") {
  check_usage("eval --from a b c", "lancet eval",
              "The following arguments were not expected: c b; see lancet eval --help");
  check_usage("", "lancet", "A subcommand is required; see lancet --help");
  check_usage("trian x", "lancet", "A subcommand is required, found 'trian'; see");
  check_usage("data", "lancet data", "A subcommand is required; see lancet data --help");
  check_usage("bench networks", "lancet bench", "A subcommand is required, found 'networks'; see lancet bench --help");
  check_usage("--versoin train x", "lancet train", "expected one of its options, found '--versoin'; see lancet");
  check_usage("eval --from a 'b\nc'", "lancet eval", "The following argument was not expected: b?c; see");
}

TEST_CASE("options without their value, given twice, or of another kind") {
  check_usage("train x --resume", "lancet train", "--resume: 1 required STEP missing");
  check_usage("train x --set", "lancet train", "--set: 1 required KEY=VALUE missing");
  check_usage("train x --resume ''", "lancet train", "--resume: expected a value, found an empty word");
  check_usage("train ''", "lancet train", "config: expected a value, found an empty word");
  check_usage("train x --init-from ''", "lancet train", "--init-from: expected a value, found an empty word");
  check_usage("train x --run-dir ''", "lancet train", "--run-dir: expected a value, found an empty word");
  check_usage("plan x --out ''", "lancet plan", "--out: expected a value, found an empty word");
  check_usage("eval --from ''", "lancet eval", "--from: expected a value, found an empty word");
  check_usage("eval --from a --from b", "lancet eval", "--from: ");
  check_usage("generate --from a --ids=maybe", "lancet generate", "Could not convert: --ids = maybe; see");
  check_usage("generate --from a --temperature hot", "lancet generate", "Could not convert: --temperature = hot; see");
  check_usage("data tokenize a --tokenizer b --out c --eval-fraction 0.5", "lancet data tokenize",
              "--eval-fraction requires --eval-out; see");
  check_usage("import --from a --out b --noise 1", "lancet import", "--noise requires --upcycle; see");
  check_usage("export --to gguf --from a --out b", "lancet export", "--to: gguf not in {hf}");
  check_usage("profile x --renew some", "lancet profile", "--renew: some not in {communication,all}");
}

#if defined(LANCET_HAVE_MPI)
TEST_CASE("a wrong command line of several ranks is reported once") {
  const auto outcome = test::mpirun(2, "train --rsume x");
  INFO(outcome.output);
  CHECK(outcome.code == 2);
  CHECK(outcome.lines_with("lancet train: expected one of its options, found '--rsume'; see") == 1);
}
#endif

// Output of the scripts.

namespace {

// What a function of scripts/common.sh prints for ctest's results.
std::string printed(const std::string& function, const std::string& results) {
  const test::TemporaryFolder folder;
  return test::shell("bash -c '. " LANCET_SOURCE_DIR "/scripts/common.sh; " + function + " " +
                     folder.write("results", results) + "'")
      .output;
}

}  // namespace

TEST_CASE("the last line of scripts/test.sh counts skipped tests by reason") {
  const auto skipped = [](const std::string& results) { return printed("skipped_tests", results); };
  CHECK(skipped("<testcase name=\"a\">\nall is well\n<testcase name=\"b\">\n3 passed\n").empty());
  CHECK(skipped("<testcase name=\"a\">\nSKIPPED: no GPU\nand again\nSKIPPED: no GPU\n"
                "<testcase name=\"b\">\nb.cpp:3: warning:\n  SKIPPED: no chromium here: apt-get install chromium\n"
                "<testcase name=\"c\">\npassed\n<testcase name=\"d\">\nSKIPPED: no GPU\n") ==
        "3 skipped: 2 (no GPU), 1 (no chromium here: apt-get install chromium)\n");
}
TEST_CASE("scripts/test.sh ends with the last lines of each failed test") {
  std::string many;
  for (int line = 0; line < 100; ++line) many += std::to_string(line) + "\n";
  const std::string first = "<testcase name=\"";
  CHECK(printed("failed_tests", first + "a\" classname=\"a\" status=\"run\">\n<system-out>well\n</system-out>\n" +
                                    first +
                                    "b c\" classname=\"b c\" status=\"fail\">\n<failure/>\n<system-out>1 == 2\nits end"
                                    "</system-out>\n") == "-- b c\n1 == 2\nits end\n");
  const std::string of_many =
      printed("failed_tests", first + "d\" classname=\"d\" status=\"fail\">\n<system-out>" + many + "</system-out>\n");
  CHECK(of_many.starts_with("-- d\n41\n42\n"));
  CHECK(of_many.ends_with("\n98\n99\n\n"));
}

namespace {

// What the program writes to a descriptor that is a small, non-blocking pipe, which is read only once it is full.
test::Outcome through_full_pipe(int descriptor, std::string argument, std::string other) {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  constexpr int size = 4096;
  REQUIRE(::fcntl(ends[1], F_SETPIPE_SZ, size) == size);
  REQUIRE(::fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
  std::string program = LANCET_BINARY;
  char* const arguments[] = {program.data(), argument.data(), other.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], descriptor);
  pid_t child = 0;
  REQUIRE(posix_spawn(&child, program.c_str(), &actions, nullptr, arguments, environ) == 0);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  int status = 0, waiting = 0;
  bool ended = false;
  CHECK(test::wait_until([&] {
    ended = ::waitpid(child, &status, WNOHANG) == child;
    return ended || (::ioctl(ends[0], FIONREAD, &waiting) == 0 && waiting == size);
  }));
  test::Outcome outcome;
  char buffer[size];
  for (ssize_t count; (count = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    outcome.output.append(buffer, std::size_t(count));
  ::close(ends[0]);
  if (!ended) ::waitpid(child, &status, 0);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

}  // namespace

TEST_CASE("output waits for the reader of a pipe that is full and non-blocking") {
  const auto help = through_full_pipe(STDOUT_FILENO, "train", "--help");
  CHECK(help.code == 0);
  CHECK(help.output == test::lancet("train --help").output);
  CHECK(help.output.size() > 10000);
  const std::string name(9000, 'x');
  const auto error = through_full_pipe(STDERR_FILENO, "plan", name);
  CHECK(error.code == 2);
  CHECK(error.output == test::lancet("plan " + name).output);
  CHECK(error.output.size() > name.size());
}

}  // namespace lancet
