// Wrong command lines of every command: one line that names the place, the expected and the found value; exit code 2.
#include <catch2/catch.hpp>

#include "program.h"

namespace lancet {
namespace {

void check(const std::string& arguments, const std::string& where, const std::string& said) {
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
    {"train", Command::one, "CONFIG", "", ""},
    {"plan", Command::one, "CONFIG", "--ranks", "a whole number from 1 to 65536"},
    {"profile", Command::one, "CONFIG", "--seconds", "a number from 0 to 3600"},
    {"report", Command::several, "RUN", "", ""},
    {"eval", Command::none, "--from RUN", "--threads", "a whole number from 0 to 1024"},
    {"generate", Command::none, "--from RUN", "--max-tokens", "a whole number from 0 to 1099511627776"},
    {"export", Command::none, "--to TEXT", "--max-shard-gb", "a number from 0 to 1000000"},
    {"import", Command::none, "--from DIR", "--upcycle", "a whole number from 1 to 65536"},
    {"data encode", Command::none, "--tokenizer DIR", "", ""},
    {"data tokenize", Command::several, "FILE", "--threads", "a whole number from 1 to 1024"},
    {"data train-tokenizer", Command::several, "FILE", "--vocab-size", "a whole number from 257 to 2147483647"},
    {"bench ops", Command::one, "CONFIG", "--steps", "a whole number from 1 to 100000"},
    {"bench network", Command::none, "", "--max-mb", "a number from 0.001 to 1000"},
    {"bench sweep", Command::one, "FILE", "--timeout", "a whole number from 1 to 1000000"},
    {"bench checkpoint", Command::one, "CONFIG", "--rounds", "a whole number from 1 to 1000"},
};

}  // namespace

TEST_CASE("wrong command lines of every command") {
  for (const auto& [name, words, required, number, range] : commands) {
    const std::string where = "lancet " + name;
    check(name + " --helpp x", where, "expected one of its options, found '--helpp'; the nearest known one is --help;");
    check(name + " --qqqqqqqqqq=3 x", where, "expected one of its options, found '--qqqqqqqqqq'; see " + where);
    if (!required.empty()) check(name, where, "expected " + required + ", found none; see " + where + " --help");
    // Required options are checked first.
    const std::string rest = name == "bench checkpoint" ? " --dir ." : "";
    if (words == Command::one)
      check(name + rest + " a 'b c'", where, "expected one " + required + ", found another, 'b c'");
    if (number.empty()) continue;
    const std::string given = words == Command::none ? "" : " x" + rest;
    for (const std::string wrong : {"many", "1e400", "nan", "3x", "-5"}) {
      const std::string required_others = name == "export"                       ? " --to hf --from a --out b"
                                          : name == "import"                     ? " --from a --out b"
                                          : name == "data train-tokenizer"       ? " --out b"
                                          : name == "data tokenize"              ? " --tokenizer t --out b"
                                          : name == "eval" || name == "generate" ? " --from a"
                                                                                 : "";
      check(name + given + required_others + " " + number + " " + wrong, where,
            number + ": expected " + range + ", found '" + wrong + "'");
    }
  }
}

TEST_CASE("words that no command accepts") {
  check("eval --from a b c", "lancet eval", "expected options alone, found 'b'");
  check("", "lancet", "expected a command (train, data, bench,");
  check("trian x", "lancet", "expected a command (train, data, bench,");
  CHECK(test::lancet("trian x").lines_with("found 'trian'; the nearest known one is train; see lancet --help") == 1);
  check("data", "lancet data", "expected a command (encode, tokenize, train-tokenizer), found none");
  check("bench networks", "lancet bench",
        "expected a command (network, sweep, checkpoint, ops), found 'networks'; the nearest known one is network;");
  check("--versoin train x", "lancet",
        "expected one of its options, found '--versoin'; the nearest known one is --version;");
}

TEST_CASE("options without their value, given twice, or of another kind") {
  check("train x --resume", "lancet train", "--resume: expected STEP, found none");
  check("train x --set", "lancet train", "--set: expected KEY=VALUE, found none");
  check("train x --resume ''", "lancet train", "--resume: expected STEP, found an empty word");
  check("train ''", "lancet train", "expected CONFIG, found an empty word");
  check("train x --init-from ''", "lancet train", "--init-from: expected DIR, found an empty word");
  check("train x --run-dir ''", "lancet train", "--run-dir: expected DIR, found an empty word");
  check("plan x --out ''", "lancet plan", "--out: expected FILE, found an empty word");
  check("eval --from ''", "lancet eval", "expected --from RUN, found an empty word");
  check("generate --from a --prompt= --ids", "lancet generate",
        "--prompt: expected TEXT after '=', found none (for an empty value: --prompt '')");
  check("train --run-dir= x", "lancet train", "--run-dir: expected DIR after '=', found none");
  check("eval --from a --from b", "lancet eval", "--from: expected once, found 2 times");
  check("generate --from a --ids=maybe", "lancet generate", "--ids: expected no value, found 'maybe'");
  check("generate --from a --temperature hot", "lancet generate", "--temperature: expected a number, found 'hot'");
  check("data tokenize a --tokenizer b --out c --eval-fraction 0.5", "lancet data tokenize",
        "--eval-fraction: expected --eval-out beside it, found none");
  check("import --from a --out b --noise 1", "lancet import", "--noise: expected --upcycle beside it, found none");
  check("export --to gguf --from a --out b", "lancet export", "--to: expected hf, found 'gguf'");
  check("profile x --renew some", "lancet profile", "--renew: expected communication or all, found 'some'");
  check("bench checkpoint x --dir /no/such", "lancet bench checkpoint",
        "--dir: expected a folder, found none called '/no/such'");
}

#if defined(LANCET_HAVE_MPI)
TEST_CASE("a wrong command line of several ranks is reported once") {
  const auto outcome = test::mpirun(2, "train --rsume x");
  INFO(outcome.output);
  CHECK(outcome.code == 2);
  CHECK(outcome.lines_with("lancet train: expected one of its options, found '--rsume'; the nearest known one is "
                           "--resume") == 1);
}
#endif

}  // namespace lancet
