// eval, generate, export and import as users call them, and what they are told when something is wrong.
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>

#include "lancet/data/token_file.h"
#include "program.h"

namespace lancet {
namespace {

using test::lancet;
using test::TemporaryFolder;
namespace fs = std::filesystem;

std::string fixture(const std::string& name) {
  return std::string(LANCET_SOURCE_DIR) + "/tests/reference/hugging_face/" + name;
}

void check(const test::Outcome& outcome, int code, const std::vector<std::string>& said) {
  INFO(outcome.output);
  CHECK(outcome.code == code);
  for (const std::string& text : said) CHECK(outcome.lines_with(text) == 1);
}

// A run folder of the small dense model with 71 ids.
std::string imported(const TemporaryFolder& folder, const std::string& name) {
  const std::string run = folder / ("run-" + name);
  const auto outcome = lancet("import --from " + fixture(name) + " --out " + run);
  INFO(outcome.output);
  REQUIRE(outcome.code == 0);
  return run;
}

std::string result_of(const std::string& arguments) {  // of standard output alone
  const auto outcome = test::shell(LANCET_BINARY " " + arguments + " 2>/dev/null");
  INFO(arguments << ": " << outcome.output);
  REQUIRE(outcome.code == 0);
  return outcome.output;
}

}  // namespace

TEST_CASE("import, generate, export and import again") {
  const std::string name = GENERATE("gpt2", "gpt2_moe");
  const TemporaryFolder folder;
  const std::string run = imported(folder, name);
  const std::string greedy = " --ids --temperature 0 --max-tokens 12 --prompt '1 2 3'";
  const std::string text = result_of("generate --from " + run + greedy);
  CHECK(text.starts_with("1 2 3 "));
  CHECK(std::count(text.begin(), text.end(), ' ') == 14);
  CHECK(text.ends_with("\n"));
  CHECK(result_of("generate --from " + run + "/checkpoints/step-000000" + greedy) == text);
  CHECK(test::shell("echo 1 2 3 | " LANCET_BINARY " generate --ids --temperature 0 --max-tokens 12 --from " + run +
                    " 2>/dev/null")
            .output == text);
  CHECK("1 2 3 " + result_of("generate --only-new --from " + run + greedy) == text);

  CHECK(result_of("generate --from " + run + " --ids --seed 3 --prompt 5 --max-tokens 20") ==
        result_of("generate --from " + run + " --ids --seed 3 --prompt 5 --max-tokens 20"));
  check(lancet("generate --ids --max-tokens 1000 --prompt 5 --from " + run), 0, {"the window of 32 tokens is full"});

  REQUIRE(lancet("export --to hf --from " + run + " --out " + (folder / "hf") + " --max-shard-gb 0.00005").code == 0);
  REQUIRE(lancet("import --from " + (folder / "hf") + " --out " + (folder / "again")).code == 0);
  CHECK(result_of("generate --from " + (folder / "again") + greedy) == text);
#if defined(LANCET_HAVE_MPI)
  const auto two =
      test::mpirun(2, "generate --from " + run + greedy + " 2>/dev/null");  // which of the two is shown first is open
  INFO(two.output);
  CHECK(two.code == 0);
  CHECK(two.lines_with(text.substr(0, text.size() - 1)) == 1);
#endif
}

TEST_CASE("a tokenizer or token file of another vocabulary is refused") {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 300; ++i) text += "caf\xc3\xa9 " + std::to_string(i % 89) + " \xe2\x82\xac, good text.\n";
  const std::string book = folder.write("book.txt", text), tok = folder / "tok", bin = folder / "t.bin";
  REQUIRE(lancet("data train-tokenizer --vocab-size 300 --out " + tok + " " + book).code == 0);
  REQUIRE(lancet("data tokenize --tokenizer " + tok + " --out " + bin + " " + book).code == 0);
  auto config = nlohmann::json::parse(std::ifstream(fixture("gpt2") + "/config.json"));
  const std::string hf = folder / "hf";
  fs::create_directories(hf);
  config["vocab_size"] = 300;
  std::ofstream(hf + "/config.json") << config.dump();
  check(lancet("import --from " + hf + " --out " + (folder / "run")), 3, {"model.safetensors"});
  const std::string run = imported(folder, "gpt2");
  check(lancet("generate --from " + run + " --tokenizer " + tok + " --prompt good"), 3, {"71 ids, found one of 300"});
  check(lancet("eval --from " + run + " --data " + bin), 3, {"model.vocab_size = 71"});
  check(lancet("eval --from " + run + " --data " + (folder / "none.bin")), 3, {"none.bin"});
  check(lancet("eval --from " + run), 2, {"expected --data FILE"});
  check(lancet("eval --from " + run + " --data " + bin + " --max-sequences 0"), 2, {"max-sequences"});
}

TEST_CASE("eval prints the same loss at any number of ranks") {
  const TemporaryFolder folder;
  const std::string name = GENERATE("gpt2", "gpt2_moe");
  const std::string run = imported(folder, name);
  std::vector<data::TokenId> tokens;
  for (int i = 0; i < 32 * 7 + 1; ++i) tokens.push_back((i * i + 3 * i) % 71);
  const std::string bin = folder / "t.bin";
  auto writer = data::TokenWriter::create(bin, 71, 0);
  REQUIRE(writer.ok());
  REQUIRE(writer->append(tokens).ok());
  REQUIRE(writer->finish().ok());
  auto loss = [&](const test::Outcome& outcome) {
    INFO(outcome.output);
    REQUIRE(outcome.code == 0);
    const auto begin = outcome.output.find('{'), end = outcome.output.rfind('}');
    REQUIRE(begin != std::string::npos);
    const auto result = nlohmann::json::parse(outcome.output.substr(begin, end - begin + 1));
    CHECK(result["sequences"] == 7);
    CHECK(result["tokens"] == 7 * 32);
    CHECK(result["perplexity"].get<double>() == Approx(std::exp(result["loss"].get<double>())));
    return result["loss"].get<double>();
  };
  const std::string arguments = "eval --json --from " + run + " --data " + bin;
  const double one = loss(lancet(arguments));
  CHECK(one > 1);
#if defined(LANCET_HAVE_MPI)
  for (int ranks : {2, 4}) CHECK(loss(test::mpirun(ranks, arguments)) == Approx(one).epsilon(1e-6));
  if (name == "gpt2_moe") check(test::mpirun(3, arguments), 2, {"num_local_experts"});
#endif
  check(lancet("eval --from " + run + " --data " + bin + " --max-sequences 2"), 0, {"2 sequences of 32 tokens"});
}

TEST_CASE("models that are not there, and options that are wrong") {
  const TemporaryFolder folder;
  const std::string run = imported(folder, "gpt2");
  const std::string generate = "generate --ids --from " + run + " --prompt '1 2' ";
  check(lancet("generate --ids --prompt 1 --from " + (folder / "none")), 3, {"found no folder"});
  fs::create_directories(folder / "empty/checkpoints");
  check(lancet("generate --ids --prompt 1 --from " + (folder / "empty")), 3,
        {"expected a whole checkpoint, found none"});
  check(lancet("generate --ids --prompt 1 --from " + fixture("gpt2")), 3, {"lancet import reads"});
  check(lancet(generate + "--temperature -1"), 2, {"temperature: expected a number from 0 on, found -1"});
  check(lancet(generate + "--temperature nan"), 2, {"temperature"});
  check(lancet(generate + "--top-p 0"), 2, {"top-p: expected a number above 0"});
  check(lancet(generate + "--top-p 1.01"), 2, {"top-p"});
  check(lancet(generate + "--top-k -3"), 2, {"top-k"});
  check(lancet(generate + "--max-tokens -1"), 2, {"max-tokens"});
  check(lancet(generate + "--dtype fp8"), 2, {"dtype"});
  check(lancet("generate --ids --prompt '1 71' --from " + run), 3, {"token ids below 71, found '71'"});
  check(lancet("generate --ids --prompt '1 x' --from " + run), 3, {"found 'x'"});
  check(lancet("generate --ids --prompt '' --from " + run), 2, {"at least one token"});
  check(lancet("generate --prompt good --from " + run), 2, {"expected a tokenizer"});
  std::string long_prompt;
  for (int i = 0; i < 33; ++i) long_prompt += "7 ";
  check(lancet("generate --ids --prompt '" + long_prompt + "' --from " + run), 2, {"window of 32 tokens, found 33"});
  check(test::shell("head -c 20000000 /dev/zero | " LANCET_BINARY " generate --ids --from " + run), 3,
        {"at most 16 MiB"});

  check(lancet("import --from " + fixture("gpt2") + " --out " + run), 2, {"files in it"});
  check(lancet("import --from " + (folder / "none") + " --out " + (folder / "x")), 3, {"found no folder"});
  check(lancet("import --upcycle 2 --from " + fixture("gpt2_moe") + " --out " + (folder / "x")), 2, {"dense"});
  check(lancet("import --upcycle 0 --from " + fixture("gpt2") + " --out " + (folder / "x")), 2, {"upcycle"});
  check(lancet("export --to onnx --from " + run + " --out " + (folder / "x")), 2, {"onnx"});
  check(lancet("export --to hf --from " + run + " --out " + run), 2, {"files in it"});
  check(lancet("export --to hf --from " + (folder / "none") + " --out " + (folder / "x")), 3, {"found no folder"});
  CHECK_FALSE(fs::exists(folder / "x"));
  check(lancet("generate --help"), 0, {"--top-p"});

  // A damaged checkpoint is no checkpoint.
  const std::string weights = run + "/checkpoints/step-000000/model.safetensors";
  std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(5000);
  file.put('\x55');
  file.seekp(5001);
  file.put('\x2a');
  file.close();
  check(lancet(generate), 3, {"damaged"});
  fs::resize_file(weights, 1000);
  check(lancet(generate), 3, {"expected a whole checkpoint"});
}

TEST_CASE("an upcycled model trains on and generates") {
  const TemporaryFolder folder;
  const std::string run = folder / "run";
  check(lancet("import --upcycle 4 --noise 0.05 --from " + fixture("gpt2") + " --out " + run), 0, {"step-000000"});
  const auto config = nlohmann::json::parse(std::ifstream(run + "/config.json"));
  CHECK(config["model"]["num_local_experts"] == 4);
  CHECK(config["model"]["moe_layer_freq"] == 2);
  CHECK(result_of("generate --ids --prompt 3 --max-tokens 4 --from " + run).starts_with("3 "));
}

}  // namespace lancet
