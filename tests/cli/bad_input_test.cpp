// Wrong input of a user: one line that names what was expected, what was found and where, and the right exit code.
#include <unistd.h>

#include <catch2/catch.hpp>

#include "cli/support.h"
#include "text.h"

namespace lancet {
namespace {

using test::lancet;
using test::TemporaryFolder;

struct Case {
  std::string set;
  std::vector<std::string> said;
};

}  // namespace

TEST_CASE("wrong config fields") {
  const TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config_text);
  const auto given =
      GENERATE(values<Case>({{"model.n_embdd=3", {"n_embdd", "n_embd"}},
                             {"modell.n_embd=3", {"modell", "model"}},
                             {"model.n_embd=33", {"n_head"}},
                             {"model.n_embd=-4", {"n_embd", "-4"}},
                             {"model.n_embd=wide", {"--set model.n_embd: expected", "\"wide\""}},
                             {"train.dtype=fp64", {"dtype", "fp64"}},
                             {"train.seq_len=999", {"seq_len", "999"}},
                             {"overlap.policy=quick", {"overlap.policy: expected one of sequential", "quick"}},
                             {"device=gpu", {"--set device", "gpu"}},
                             {"overlap.k=4", {"unknown key 'overlap.k'"}},
                             {"log.trace=true", {"--set log.trace: expected an integer", "true"}},
                             {"log.trace=21", {"log.trace: expected a step of train.steps = 20"}},
                             {"model.n_layer=100000000", {"n_layer", "[1, 10000]"}},
                             {"model.n_embd=999999999999", {"n_embd", "[1, 1048576]"}},
                             {"train.micro_batch_size=1048576 --set model.vocab_size=2147483647",
                              {"the logits", "expected at most 1099511627776 elements"}},
                             {"model.capacity_factor=1e300", {"capacity_factor"}},
                             {"train.lr", {"train.lr"}}}));
  const auto outcome = lancet("train " + config + " --set " + given.set + " --run-dir " + (folder / "run"));
  check_said(outcome, 2, given.said);
  CHECK_FALSE(std::filesystem::exists(folder / "run"));
}

TEST_CASE("wrong config files") {
  const TemporaryFolder folder;
  check_said(lancet("train " + (folder / "none.json")), 2, {"none.json"});
  check_said(lancet("train /dev/zero"), 2, {"/dev/zero: expected a JSON config file, found no regular file"});
  check_said(lancet("train /dev/stdin </dev/zero"), 2, {"/dev/stdin: expected a JSON config file of at most 16 MB"});
  std::filesystem::resize_file(folder.write("vast.json", "{}"), std::uintmax_t(1) << 40);
  check_said(lancet("plan " + folder.write("good.json", test::small_config_text) + " --on " + (folder / "vast.json")),
             2, {"vast.json: expected a hardware file of at most 1000 MB, found 1099511 MB"});
  check_said(lancet("train " + folder.write("bad.json", "{\"model\": {\n  \"n_layer\": }\n}")), 2, {"bad.json:2"});
  check_said(lancet("train " + folder.write("deep.json", std::string(100'000, '['))), 2,
             {"deep.json: expected JSON of at most 100 nested brackets"});
  check_said(lancet("train " + folder.write("good.json", test::small_config_text) +
                    " --set train.lr=" + std::string(100'000, '[')),
             2, {"--set train.lr: expected a number in [0, 1e+30], found \"[[[["});
  check_said(lancet("train"), 2, {"config is required"});
  check_said(lancet("trian x.json"), 2, {"trian"});
}

#if defined(LANCET_HAVE_MPI)
TEST_CASE("a wrong number of ranks is reported once, and all ranks exit") {
  const TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config_text);
  check_said(test::mpirun(3, "train " + config + " --set mesh.data=2 --run-dir " + (folder / "run")), 2,
             {"mesh: expected axes whose product is the 3 ranks, found data 2"});
  CHECK_FALSE(std::filesystem::exists(folder / "run"));
  check_said(test::mpirun(2, "train " + config + " --set model.n_embdd=3"), 2, {"n_embdd"});
}
#endif

TEST_CASE("wrong token files") {
  const TemporaryFolder folder;
  const std::string book = folder.write("book.txt", std::string(20000, 'x') + "\nand some other words to learn from\n");
  const std::string tok = folder / "tok", bin = folder / "train.bin";
  REQUIRE(lancet("data train-tokenizer --vocab-size 260 --out " + tok + " " + book).code == 0);
  REQUIRE(lancet("data tokenize --tokenizer " + tok + " --out " + bin + " " + book).code == 0);
  check_said(lancet("data tokenize --tokenizer " + tok + " --out " + tok + "/vocab.json " + book), 2,
             {"--out", "outside of the tokenizer's folder"});
  check_said(lancet("report " + tok + " --out " + tok + "/vocab.json"), 2, {"--out", "a new file or an HTML page"});
  const std::string config = folder.write("small.json", test::small_config_text);
  auto train = [&](const std::string& file, const std::string& more = "") {
    return lancet("train " + config + " --set data.synthetic=false --set data.train=" + file +
                  " --set model.vocab_size=260 " + more + " --run-dir " + (folder / "run"));
  };
  check_said(train(folder / "none.bin"), 3, {"none.bin"});
  check_said(train(folder.write("foreign.bin", std::string(4096, 'z'))), 3, {"foreign.bin"});
  check_said(train(folder.write("empty.bin", "")), 3, {"empty.bin"});
  std::filesystem::copy_file(bin, folder / "short.bin");
  std::filesystem::resize_file(folder / "short.bin", std::filesystem::file_size(bin) - 3);
  check_said(train(folder / "short.bin"), 3, {"short.bin"});
  check_said(train(bin, "--set model.vocab_size=259"), 3, {"at most model.vocab_size = 259 ids"});
  REQUIRE(lancet("data train-tokenizer --vocab-size 260 --out " + (folder / "other") + " " +
                 folder.write("b.txt", "zq zq zq zw zw zw zw"))
              .code == 0);
  check_said(train(bin, "--set data.tokenizer=" + (folder / "other")), 3, {"tokenizer"});
  CHECK_FALSE(std::filesystem::exists(folder / "run"));
}

TEST_CASE("wrong texts leave no files") {
  const TemporaryFolder folder;
  const std::string book = folder.write("book.txt", "good text, enough of it to learn a little from, good text\n");
  const std::string tok = folder / "tok";
  REQUIRE(lancet("data train-tokenizer --vocab-size 260 --out " + tok + " " + book).code == 0);
  const std::string bad = folder.write("bad.txt", "good until here \xff\xfe and then not\n");
  const auto before = folder.names().size();
  check_said(lancet("data tokenize --tokenizer " + tok + " --out " + (folder / "out.bin") + " " + bad), 3, {"bad.txt"});
  check_said(
      lancet("data tokenize --tokenizer " + tok + " --out " + (folder / "out.bin") + " " + (folder / "none.txt")), 3,
      {"none.txt"});
  check_said(lancet("data train-tokenizer --vocab-size 300 --out " + (folder / "tok2") + " " + bad), 3, {"bad.txt"});
  check_said(lancet("data tokenize --tokenizer " + (folder / "no-tok") + " --out " + (folder / "out.bin") + " " + book),
             3, {"no-tok"});
  CHECK(folder.names().size() == before);
  check_said(test::shell("printf 'a\\377b' | " LANCET_BINARY " data encode --tokenizer " + tok), 3,
             {"error: standard input: expected text in UTF-8, found byte 0xff at byte 1"});
  check_said(test::shell(LANCET_BINARY " data encode --tokenizer " + tok + " --text \"$(printf 'a\\377b')\""), 2,
             {"error: --text: expected text in UTF-8, found byte 0xff at byte 1"});
  check_said(test::shell("printf 'good text' | " LANCET_BINARY " data encode --tokenizer " + tok + " > /dev/full"), 3,
             {"cannot write standard output"});
}

TEST_CASE("a tokenizer is trained into a folder of its own, or of another one's two files alone") {
  const TemporaryFolder folder;
  const std::string book = folder.write("book.txt", "good text, enough of it to learn a little from, good text\n");
  const std::string tok = folder / "tok";
  for (const char* size : {"260", "259"})
    REQUIRE(lancet("data train-tokenizer --vocab-size " + std::string(size) + " --out " + tok + " " + book).code == 0);
  CHECK(test::shell("printf good | " LANCET_BINARY " data encode --tokenizer " + tok).code == 0);
  const auto none = test::shell("echo good | " LANCET_BINARY " data encode --text '' --tokenizer " + tok);
  CHECK(none.output == "\n");
  CHECK(none.code == 0);
  const std::string vocab = *read_file(tok + "/vocab.json", "a vocabulary");
  CHECK(test::json_in(vocab).size() == 259);
  for (const std::string name : {"added_tokens.json", "tokenizer.json", "tokenizer_config.json",
                                 "special_tokens_map.json", "chat_template.jinja", "generation_config.json"}) {
    const std::string file = folder.write("tok/" + name, "{}");
    check_said(lancet("data train-tokenizer --vocab-size 260 --out " + tok + " " + (folder / "no book")), 2,
               {"error: --out: expected a folder without files of another tokenizer, found " + file +
                "; remove it or name another folder"});
    std::filesystem::remove(file);
  }
  CHECK(*read_file(tok + "/vocab.json", "a vocabulary") == vocab);
}

// A limit on the size of files stands in for the full disk: the system refuses the same writes, in the middle.
TEST_CASE("a full disk leaves only complete files") {
  const TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config_text);
  REQUIRE(lancet("train " + config + " --set train.steps=1 --run-dir " + (folder / "free")).code == 0);
  const auto plan_bytes = std::filesystem::file_size(folder / "free/plan.ir");
  // The shell's blocks have 512 bytes; stderr must not be a file, which would have this limit too.
  const auto limited = [&](std::uintmax_t bytes, const std::string& run) {
    return test::shell("exec 2>&1; trap '' XFSZ; ulimit -f " + std::to_string(bytes / 512) +
                       "; exec " LANCET_BINARY " train " + config +
                       " --set train.steps=2000 --set log.interval=1000 --run-dir " + run);
  };
  const auto text = [](const std::string& path) {
    std::ostringstream out;
    out << std::ifstream(path).rdbuf();
    return out.str();
  };
  SECTION("the plan does not fit the disk") {
    REQUIRE(plan_bytes > 8192);
    check_said(limited(8192, folder / "run"), 3, {"plan.ir"});
    CHECK(test::json_in(text(folder / "run/config.json"))["train"]["steps"] == 2000);
    CHECK(std::distance(std::filesystem::directory_iterator(folder / "run"), {}) == 1);  // no partial plan
  }
  SECTION("records, events and the timeline do not fit the disk: the run continues and reports each once") {
    std::filesystem::create_directories(folder / "run/trace.json");  // no file can replace it
    const test::Outcome outcome =
        limited(plan_bytes + 1024, folder / "run --set train.steps=60 --set log.tensorboard=true --set log.trace=50");
    INFO(outcome.output);
    CHECK(outcome.code == 0);
    CHECK(outcome.lines_with("step 60/60 | ") == 1);
    CHECK(outcome.lines_with("cannot write the record of step") == 1);
    CHECK(outcome.lines_with("cannot write an event to ") == 1);
    CHECK(outcome.lines_with("trace.json: expected a file to write, found a folder; the run continues") == 1);
    CHECK(test::json_in(text(folder / "run/config.json"))["train"]["steps"] == 60);
    CHECK(std::filesystem::file_size(folder / "run/plan.ir") > plan_bytes - 1024);
    const std::string lines = text(folder / "run/metrics.jsonl");
    CHECK(lines.ends_with("}\n"));
    const auto records = test::metrics(folder / "run");  // each line parses
    REQUIRE(records.size() > 10);
    for (std::size_t i = 0; i < records.size(); ++i) CHECK(records[i]["step"] == i + 1);
  }
  SECTION("nothing fits the disk") {
    check_said(limited(0, folder / "run"), 3, {"config.json"});
    CHECK(std::filesystem::is_empty(folder / "run"));
  }
}

TEST_CASE("a result that cannot be written to standard output is an error") {
  const TemporaryFolder folder;
  check_said(lancet("bench ops --steps 1 " + folder.write("small.json", test::small_config_text) + " > /dev/full"), 3,
             {"cannot write standard output"});
  check_said(lancet("plan " + (folder / "small.json") + " --on p4de-a100 --ranks 4 > /dev/full"), 3,
             {"cannot write standard output"});
}

TEST_CASE("a held-out file without a held-out fraction is an error") {
  const TemporaryFolder folder;
  const std::string book = folder.write("book.txt", "good text, enough of it to learn a little from, good text\n");
  REQUIRE(lancet("data train-tokenizer --vocab-size 260 --out " + (folder / "tok") + " " + book).code == 0);
  check_said(lancet("data tokenize --tokenizer " + (folder / "tok") + " --out " + (folder / "a.bin") + " --eval-out " +
                    (folder / "b.bin") + " " + book),
             2, {"--eval-fraction"});
  CHECK(folder.names().size() == 2);
}

TEST_CASE("a second run in the same folder keeps the first one's records") {
  const TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config_text), run = folder / "run";
  for (int steps : {3, 2}) {
    const auto outcome =
        lancet("train " + config + " --set train.steps=" + std::to_string(steps) + " --run-dir " + run);
    CHECK(outcome.code == 0);
    CHECK(outcome.lines_with("an earlier run's records, kept as metrics.jsonl.1") == (steps == 2));
  }
  CHECK(test::metrics(run).size() == 2);
  std::filesystem::rename(run + "/metrics.jsonl.1", run + "/metrics.jsonl");
  CHECK(test::metrics(run).size() == 3);
}

TEST_CASE("files without permission to read or write are reported") {
  if (::geteuid() != 0) {
    WARN("SKIPPED: expected root, who may become another user");
    return;
  }
  const TemporaryFolder folder;
  std::filesystem::permissions(folder / "", std::filesystem::perms(0755));
  const std::string book = folder.write("book.txt", "good text, enough of it to learn a little from, good text\n");
  const std::string tok = folder / "tok", config = folder.write("small.json", test::small_config_text);
  REQUIRE(lancet("data train-tokenizer --vocab-size 260 --out " + tok + " " + book).code == 0);
  const auto nobody = [](const std::string& arguments) {
    return test::shell("setpriv --reuid=65534 --regid=65534 --clear-groups " LANCET_BINARY " " + arguments);
  };
  if (nobody("--version").code != 0) {
    WARN("SKIPPED: expected a build that other users may run");
    return;
  }
  const std::string denied = "found: Permission denied";
  check_said(nobody("data train-tokenizer --vocab-size 260 --out " + (folder / "tok2") + " " + book), 3, {denied});
  check_said(nobody("import --from " LANCET_SOURCE_DIR "/tests/reference/hugging_face/gpt2 --out " + (folder / "r")), 3,
             {(folder / "r") + ", " + denied});
  check_said(nobody("train " + config + " --run-dir " + (folder / "run")), 3, {": Permission denied"});
  std::filesystem::permissions(tok, std::filesystem::perms(0700));
  check_said(nobody("data encode --tokenizer " + tok + " --text a"), 3,
             {tok + "/vocab.json: expected a tokenizer's vocabulary, " + denied});
  std::filesystem::permissions(tok, std::filesystem::perms(0755));
  std::filesystem::permissions(tok + "/merges.txt", std::filesystem::perms(0600));
  check_said(nobody("data encode --tokenizer " + tok + " --text a"), 3,
             {tok + "/merges.txt: expected a tokenizer's merges, " + denied});
}

TEST_CASE("a run folder that cannot be written") {
  const TemporaryFolder folder;
  const std::string config = folder.write("small.json", test::small_config_text);
  const std::string file = folder.write("a-file", "");
  check_said(lancet("train " + config + " --run-dir " + file + "/run"), 3, {"run_dir"});
#if defined(LANCET_HAVE_MPI)
  check_said(test::mpirun(2, "train " + config + " --run-dir " + file + "/run"), 3, {"run_dir"});
#endif
}

}  // namespace lancet
