// Whatever a user gets wrong: one line that says what was expected, what was found and where; the right code.
#include <catch2/catch.hpp>

#include "cli/support.h"

namespace lancet {
namespace {

using test::lancet;
using test::TemporaryFolder;

void check(const test::Outcome& outcome, int code, const std::vector<std::string>& said) {
  INFO(outcome.output);
  CHECK(outcome.code == code);
  for (const std::string& text : said) CHECK(outcome.lines_with(text) == 1);
}

struct Case {
  std::string set;
  std::vector<std::string> said;
};

}  // namespace

TEST_CASE("fields that are wrong") {
  const TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config);
  const auto given = GENERATE(values<Case>({{"model.n_embdd=3", {"n_embdd", "n_embd"}},
                                            {"modell.n_embd=3", {"modell", "model"}},
                                            {"model.n_embd=33", {"n_head"}},
                                            {"model.n_embd=-4", {"n_embd", "-4"}},
                                            {"model.n_embd=wide", {"n_embd", "wide"}},
                                            {"train.dtype=fp64", {"dtype", "fp64"}},
                                            {"train.seq_len=999", {"seq_len", "999"}},
                                            {"overlap.policy=lancet", {"overlap.policy", "sequential"}},
                                            {"device=cuda", {"cuda"}},
                                            {"train.lr", {"train.lr"}}}));
  const auto outcome = lancet("train " + config + " --set " + given.set + " --run-dir " + (folder / "run"));
  check(outcome, 2, given.said);
  CHECK_FALSE(std::filesystem::exists(folder / "run"));
}

TEST_CASE("config files that are wrong") {
  const TemporaryFolder folder;
  check(lancet("train " + (folder / "none.json")), 2, {"none.json"});
  check(lancet("train " + folder.write("bad.json", "{\"model\": {\n  \"n_layer\": }\n}")), 2, {"bad.json:2"});
  check(lancet("train"), 2, {"config"});
  check(lancet("trian x.json"), 2, {"trian"});
}

TEST_CASE("ranks that do not fit are told once, and all leave") {
  const TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config);
  check(test::mpirun(3, "train " + config + " --run-dir " + (folder / "run")), 2, {"num_local_experts"});
  CHECK_FALSE(std::filesystem::exists(folder / "run"));
  check(test::mpirun(2, "train " + config + " --set model.n_embdd=3"), 2, {"n_embdd"});
}

TEST_CASE("token files that are wrong") {
  const TemporaryFolder folder;
  const std::string book = folder.write("book.txt", std::string(20000, 'x') + "\nand some other words to learn from\n");
  const std::string tok = folder / "tok", bin = folder / "train.bin";
  REQUIRE(lancet("data train-tokenizer --vocab-size 260 --out " + tok + " " + book).code == 0);
  REQUIRE(lancet("data tokenize --tokenizer " + tok + " --out " + bin + " " + book).code == 0);
  const std::string config = folder.write("small.json", test::small_config);
  auto train = [&](const std::string& file, const std::string& more = "") {
    return lancet("train " + config + " --set data.synthetic=false --set data.train=" + file + " --set model.vocab_size=260 " + more +
                  " --run-dir " + (folder / "run"));
  };
  check(train(folder / "none.bin"), 3, {"none.bin"});
  check(train(folder.write("foreign.bin", std::string(4096, 'z'))), 3, {"foreign.bin"});
  check(train(folder.write("empty.bin", "")), 3, {"empty.bin"});
  std::filesystem::copy_file(bin, folder / "short.bin");
  std::filesystem::resize_file(folder / "short.bin", std::filesystem::file_size(bin) - 3);
  check(train(folder / "short.bin"), 3, {"short.bin"});
  check(train(bin, "--set model.vocab_size=270"), 3, {"model.vocab_size = 270"});
  REQUIRE(lancet("data train-tokenizer --vocab-size 260 --out " + (folder / "other") + " " + folder.write("b.txt", "zq zq zq zw zw zw zw")).code == 0);
  check(train(bin, "--set data.tokenizer=" + (folder / "other")), 3, {"tokenizer"});
  CHECK_FALSE(std::filesystem::exists(folder / "run"));
}

TEST_CASE("texts that are wrong leave nothing behind") {
  const TemporaryFolder folder;
  const std::string book = folder.write("book.txt", "good text, enough of it to learn a little from, good text\n");
  const std::string tok = folder / "tok";
  REQUIRE(lancet("data train-tokenizer --vocab-size 260 --out " + tok + " " + book).code == 0);
  const std::string bad = folder.write("bad.txt", "good until here \xff\xfe and then not\n");
  const auto before = folder.names().size();
  check(lancet("data tokenize --tokenizer " + tok + " --out " + (folder / "out.bin") + " " + bad), 3, {"bad.txt"});
  check(lancet("data tokenize --tokenizer " + tok + " --out " + (folder / "out.bin") + " " + (folder / "none.txt")), 3, {"none.txt"});
  check(lancet("data train-tokenizer --vocab-size 300 --out " + (folder / "tok2") + " " + bad), 3, {"bad.txt"});
  check(lancet("data tokenize --tokenizer " + (folder / "no-tok") + " --out " + (folder / "out.bin") + " " + book), 3, {"no-tok"});
  CHECK(folder.names().size() == before);
  check(test::shell("printf 'a\\377b' | " LANCET_BINARY " data encode --tokenizer " + tok), 3, {"UTF-8"});
  check(test::shell("printf 'good text' | " LANCET_BINARY " data encode --tokenizer " + tok + " > /dev/full"), 3, {"writing failed"});
}

TEST_CASE("a run folder that cannot be written") {
  const TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config);
  const std::string file = folder.write("a-file", "");
  check(lancet("train " + config + " --run-dir " + file + "/run"), 3, {"run_dir"});
  check(test::mpirun(2, "train " + config + " --run-dir " + file + "/run"), 3, {"run_dir"});
}

}  // namespace lancet
