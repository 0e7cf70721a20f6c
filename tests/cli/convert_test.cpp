// Output and checks of import and export before they start their work.
#include <catch2/catch.hpp>

#include "cli/commands.h"
#include "cli/support.h"
#include "program.h"

namespace lancet {
namespace {

const std::string from_gpt2 = "--from " LANCET_SOURCE_DIR "/tests/reference/hugging_face/gpt2";

}  // namespace

TEST_CASE("progress estimates the remaining time") {
  CHECK(cli::progress_detail("1 MB", 0.009, 3) == "1 MB");
  CHECK(cli::progress_detail("1 MB", 0.25, 10) == "1 MB, 30s left");
  CHECK(cli::progress_detail("8 MB", 0.5, 200) == "8 MB, 3m 20s left");
  CHECK(cli::progress_detail("16 MB", 1, 400) == "16 MB");
}

TEST_CASE("an import reports what it will write, and is refused if the disk has too little space") {
  const test::TemporaryFolder folder;
  const test::SmallDisk disk(folder / "disk", "1m");
  if (!disk.is_there()) return;
  const std::string out = folder / "disk/run";
  const auto large = test::lancet("import --upcycle 512 " + from_gpt2 + " --out " + out);
  INFO(large.output);
  CHECK(large.code == 3);
  CHECK(large.lines_with(out + ": 19.5 MB of weights to be written") == 1);
  CHECK(large.lines_with("error: " + out + ": expected 20 MB free on its disk, found 1 MB") == 1);
  CHECK(std::filesystem::is_empty(folder / "disk"));
  const auto small = test::lancet("import " + from_gpt2 + " --out " + out);
  INFO(small.output);
  CHECK(small.code == 0);
}

TEST_CASE("an import without one of a tokenizer's two files says that it leaves the tokenizer out") {
  const test::TemporaryFolder folder;
  const std::string hf = folder / "hf", run = folder / "run";
  std::filesystem::copy(LANCET_SOURCE_DIR "/tests/reference/hugging_face/gpt2", hf);
  const std::string text = folder.write("text", "a b");
  REQUIRE(test::lancet("data train-tokenizer --vocab-size 257 --out " + hf + " " + text).code == 0);
  const auto [removed, cause] = GENERATE(table<std::string, std::string>(
      {{"/vocab.json", "/vocab.json: expected a tokenizer's vocabulary, found no such file"},
       {"/merges.txt", "/merges.txt: expected a tokenizer's merges, found no such file"},
       {"", ""}}));
  if (!removed.empty()) std::filesystem::remove(hf + removed);
  const auto outcome = test::lancet("import --from " + hf + " --out " + run);
  INFO(outcome.output);
  CHECK(outcome.code == 0);
  CHECK(outcome.lines_with("warning: ") == !removed.empty());
  CHECK(outcome.lines_with("warning: " + hf + cause + "; the model is imported without its tokenizer") ==
        !removed.empty());
  CHECK(std::filesystem::exists(run + "/tokenizer") == removed.empty());
}

TEST_CASE("an import of a folder with tokenizer.json alone says that it leaves the tokenizer out") {
  const test::TemporaryFolder folder;
  const std::string hf = folder / "hf";
  std::filesystem::copy(LANCET_SOURCE_DIR "/tests/reference/hugging_face/gpt2", hf);
  folder.write("hf/tokenizer.json", "{}");
  const auto outcome = test::lancet("import --from " + hf + " --out " + (folder / "run"));
  INFO(outcome.output);
  CHECK(outcome.code == 0);
  CHECK(outcome.lines_with("warning: " + hf +
                           ": expected vocab.json and merges.txt, found tokenizer.json, which is not read; the model "
                           "is imported without its tokenizer") == 1);
}

TEST_CASE("a destination that cannot be written is reported before the model is read") {
  const test::TemporaryFolder folder;
  const std::string file = folder.write("file", ""), out = folder / ".";
  for (const std::string command :
       {"import --from /no/such/model --out ", "export --to hf --from /no/such/run --out "}) {
    const auto outcome = test::lancet(command + out);
    INFO(outcome.output);
    CHECK(outcome.code == 2);
    CHECK(outcome.lines_with("expected no such folder yet, or an empty one, found files in it") == 1);
    CHECK(test::lancet(command + file + "/run").lines_with("expected a folder that can be written to") == 1);
  }
}

}  // namespace lancet
