// eval, generate, export and import as users call them, and their error messages.
#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <sstream>

#include "cli/support.h"
#include "good.h"
#include "lancet/base/files.h"
#include "lancet/base/json.h"
#include "lancet/base/utf8.h"
#include "lancet/checkpoint/checkpoint.h"
#include "lancet/config/config.h"
#include "lancet/data/tokenize.h"
#include "lancet/data/tokenizer.h"
#include "program.h"
#include "text.h"

namespace lancet {
namespace {

using test::lancet;
using test::TemporaryFolder;
namespace fs = std::filesystem;

std::string fixture(const std::string& name) { return LANCET_SOURCE_DIR "/tests/reference/hugging_face/" + name; }

// A run folder of the small dense model with 71 ids.
std::string imported(const TemporaryFolder& folder, const std::string& name) {
  const std::string run = folder / ("run-" + name);
  const auto outcome = lancet("import --from " + fixture(name) + " --out " + run);
  INFO(outcome.output);
  REQUIRE(outcome.code == 0);
  return run;
}

std::string result_of(const std::string& arguments) {  // standard output only
  const auto outcome = test::shell(LANCET_BINARY " " + arguments + " 2>/dev/null");
  INFO(arguments << ": " << outcome.output);
  REQUIRE(outcome.code == 0);
  return outcome.output;
}

std::string file_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A token file with ids below 71.
std::string tokens_file(const TemporaryFolder& folder, int vocabulary = 300) {
  std::vector<data::TokenId> tokens;
  for (int i = 0; i < 16 * 4 + 1; ++i) tokens.push_back((i * i + 3 * i) % 71);
  return test::token_file(folder, tokens, vocabulary);
}

// The tensors of a dense model with this config.json: all zero, in a sparse file without disk blocks.
void write_empty_model(const nlohmann::json& model, const std::string& path) {
  const std::int64_t d = model["n_embd"], inner = model["n_inner"];
  nlohmann::ordered_json header;
  std::int64_t at = 0;
  const auto add = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    std::int64_t bytes = 4;
    for (const std::int64_t extent : shape) bytes *= extent;
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {at, at + bytes}}};
    at += bytes;
  };
  add("wte.weight", {model["vocab_size"], d});
  add("wpe.weight", {model["n_positions"], d});
  for (const std::string norm : {"h.0.ln_1", "h.0.ln_2", "ln_f"}) {
    add(norm + ".weight", {d});
    add(norm + ".bias", {d});
  }
  const auto linear = [&](const std::string& name, std::int64_t in, std::int64_t out) {
    add(name + ".weight", {in, out});
    add(name + ".bias", {out});
  };
  linear("h.0.attn.c_attn", d, 3 * d);
  linear("h.0.attn.c_proj", d, d);
  linear("h.0.mlp.c_fc", d, inner);
  linear("h.0.mlp.c_proj", inner, d);
  const std::string text = json_text(header);
  const std::uint64_t length = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), 8);
  file << text;
  file.close();
  fs::resize_file(path, 8 + text.size() + static_cast<std::uint64_t>(at));
}

}  // namespace

TEST_CASE("ranks with different options report the difference, and none waits") {
  const TemporaryFolder folder;
  const std::string from = " --from " + imported(folder, "gpt2");
  for (const std::string command : {"generate --ids --prompt 1 --max-tokens $((OMPI_COMM_WORLD_RANK + 1))",
                                    "eval --data /no/such/file --max-sequences $((OMPI_COMM_WORLD_RANK + 1))"})
    check_said(test::shell(LANCET_SOURCE_DIR "/scripts/mpirun.sh 2 sh -c '" LANCET_BINARY " " + command + from + "'"),
               2, {"error: expected the same options on all ranks, found others on rank 1 than on rank 0"});
  const std::string config = folder.write("small.json", test::small_config_text);
  check_said(test::shell(LANCET_SOURCE_DIR "/scripts/mpirun.sh 2 sh -c '" LANCET_BINARY " train " + config +
                         " --run-dir " + (folder / "run") + " --resume step-$OMPI_COMM_WORLD_RANK'"),
             2,
             {"error: expected the same --resume and --init-from on all ranks, found others on rank 1 than on rank 0"});
}

TEST_CASE("ranks that have other files at the same paths end with one line") {
  const TemporaryFolder folder;
  const auto of_rank = [&](int rank, const std::string& file) {
    return folder / ("rank" + std::to_string(rank) + file);
  };
  const std::string config = folder.write("small.json", test::small_config_text);
  for (const int rank : {0, 1}) {
    fs::create_directories(of_rank(rank, ""));
    std::vector<data::TokenId> tokens;
    for (int i = 0; i < 16 * 40 + 1; ++i) tokens.push_back((i * i + 3 * i) % 71);
    fs::copy_file(test::token_file(folder, tokens, 71), of_rank(rank, "/same.bin"));
    tokens[300] = 70 - rank;
    fs::copy_file(test::token_file(folder, tokens, 71), of_rank(rank, "/other.bin"),
                  fs::copy_options::overwrite_existing);
    const auto trained = lancet("train " + config +
                                " --set data.synthetic=true --set train.steps=1 --set train.save_interval=1 "
                                "--set train.seed=" +
                                std::to_string(rank) + " --run-dir " + of_rank(rank, "/ini"));
    REQUIRE(trained.code == 0);
  }
  fs::copy(of_rank(0, "/ini"), of_rank(0, "/one"), fs::copy_options::recursive);
  fs::copy(of_rank(0, "/ini"), of_rank(1, "/one"), fs::copy_options::recursive);
  const auto ranks = [&](const std::string& arguments) {
    return test::shell("cd " + (folder / "") + " && " LANCET_SOURCE_DIR "/scripts/mpirun.sh 2 sh -c 'cd " +
                       (folder / "rank") + "$OMPI_COMM_WORLD_RANK && exec " LANCET_BINARY " " + arguments + "'");
  };
  const std::string found = " on all ranks, found others on rank 1 than on rank 0";
  check_said(ranks("eval --from ini --data same.bin"), 3,
             {"expected the same checkpoint ini/checkpoints/step-000001" + found});
  check_said(ranks("eval --from one --data other.bin"), 3, {"expected the same other.bin" + found});
  CHECK(ranks("eval --from one --data same.bin").code == 0);
  const std::string train =
      "train " + config + " --run-dir " + (folder / "out") + " --set train.steps=2 --set data.synthetic=false ";
  check_said(ranks(train + "--init-from ini --set data.train=same.bin"), 3,
             {"expected the same checkpoint ini", found});
  check_said(ranks(train + "--set data.train=other.bin"), 3, {"expected the same data.train and data.eval" + found});
  check_said(ranks(train + "--set data.train=same.bin --set data.eval=other.bin"), 3,
             {"expected the same data.train and data.eval" + found});
  for (const int rank : {0, 1}) {
    fs::copy(fixture("qwen3_moe"), of_rank(rank, "/hf"));
    fs::copy(fixture(rank == 0 ? "llama" : "mixtral"), of_rank(rank, "/families"));
  }
  fs::copy(fixture("llama"), of_rank(0, "/absent"));
  std::string other = read_file(of_rank(1, "/hf/config.json"), "a config").value();
  other.replace(other.find("\"rms_norm_eps\": 1e-06"), 21, "\"rms_norm_eps\": 1e-05");
  std::ofstream(of_rank(1, "/hf/config.json")) << other;
  const std::string start = "train " + folder.write("from.json", R"({"train": {"steps": 1, "micro_batch_size": 2}})") +
                            " --set data.synthetic=true --run-dir " + (folder / "out") + " --set model.from=";
  for (const std::string name : {"hf", "families"})
    for (const std::string& command :
         {std::string("eval --data same.bin --from "), std::string("generate --ids --prompt 1 --from "), start})
      check_said(ranks(command + name), 3, {"error: expected the same config.json and tensors in " + name + found});
  check_said(ranks("eval --data same.bin --from absent"), 3,
             {"error: rank 1: absent: expected a folder with config.json and model.safetensors, found no folder"});
  check_said(ranks(train + "--set data.synthetic=true --init-from absent"), 3,
             {"error: rank 1: absent: expected a folder with config.json and model.safetensors, found no folder"});
  check_said(ranks(start + "absent"), 3,
             {"error: rank 1: absent/config.json: expected a Hugging Face model's config.json, found no such file"});
}

TEST_CASE("import, generate, export and import again") {
  const std::string name = GENERATE("gpt2", "gpt2_moe", "gpt2_moe_shared");
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
  check_said(lancet("generate --ids --max-tokens 1000 --prompt 5 --from " + run), 0,
             {"the window of 32 tokens is full"});

  REQUIRE(lancet("export --to hf --from " + run + " --out " + (folder / "hf") + " --max-shard-gb 0.00003").code == 0);
  CHECK(fs::exists(folder / "hf/model.safetensors.index.json"));
  REQUIRE(lancet("export --to hf --from " + run + " --out " + (folder / "one") + " --max-shard-gb 0").code == 0);
  CHECK(fs::exists(folder / "one/model.safetensors"));
  REQUIRE(lancet("import --from " + (folder / "hf") + " --out " + (folder / "again")).code == 0);
  CHECK(result_of("generate --from " + (folder / "again") + greedy) == text);
#if defined(LANCET_HAVE_MPI)
  const auto two = test::mpirun(2, "generate --from " + run + greedy + " 2>/dev/null");  // their order is undefined
  INFO(two.output);
  CHECK(two.code == 0);
  CHECK(two.lines_with(text.substr(0, text.size() - 1)) == 1);
#endif
}

#if defined(LANCET_HAVE_MPI)
TEST_CASE("several ranks do not import or export") {
  const TemporaryFolder folder;
  const std::string run = imported(folder, "gpt2"), out = folder / "out";
  for (const std::string command : {"export --to hf --from " + run, "import --from " + fixture("gpt2")}) {
    const auto outcome = test::mpirun(2, command + " --out " + out);
    check_said(outcome, 2, {"error: expected one process, found 2 ranks: import and export start without a launcher"});
    CHECK(outcome.lines_with("error: ") == 1);
    CHECK_FALSE(fs::exists(out));
  }
}

TEST_CASE("ranks wait for a prompt longer than comm.timeout_s") {
  const TemporaryFolder folder;
  const std::string run = folder / "run", config = folder.write("small.json", test::small_config_text);
  check_said(lancet("train " + config +
                    " --set train.steps=1 --set train.save_interval=1 --set comm.timeout_s=1 --run-dir " + run),
             0, {});
  const std::string greedy = " --ids --temperature 0 --max-tokens 4";
  const std::string text = result_of("generate --from " + run + greedy + " --prompt '1 2 3'");
  const auto two = test::shell("(sleep 3; echo 1 2; sleep 0.1; echo 3) | " LANCET_SOURCE_DIR
                               "/scripts/mpirun.sh 2 " LANCET_BINARY " generate --from " +
                               run + greedy + " 2>/dev/null");
  INFO(two.output);
  CHECK(two.code == 0);
  CHECK(two.lines_with(text.substr(0, text.size() - 1)) == 1);
}
#endif

TEST_CASE("a tokenizer or token file of another vocabulary is refused") {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 300; ++i) text += "caf\xc3\xa9 " + std::to_string(i % 89) + " \xe2\x82\xac, good text.\n";
  const std::string book = folder.write("book.txt", text), tok = folder / "tok", bin = folder / "t.bin";
  REQUIRE(lancet("data train-tokenizer --vocab-size 300 --out " + tok + " " + book).code == 0);
  REQUIRE(lancet("data tokenize --tokenizer " + tok + " --out " + bin + " " + book).code == 0);
  auto config = test::json_file(fixture("gpt2") + "/config.json");
  const std::string hf = folder / "hf";
  fs::create_directories(hf);
  config["vocab_size"] = 300;
  std::ofstream(hf + "/config.json") << json_text(config);
  check_said(lancet("import --from " + hf + " --out " + (folder / "run")), 3, {"model.safetensors"});
  const std::string run = imported(folder, "gpt2");
  check_said(lancet("generate --from " + run + " --tokenizer " + tok + " --prompt good"), 3,
             {"71 ids, found one of 300"});
  check_said(lancet("eval --from " + run + " --data " + bin), 3, {"model.vocab_size = 71"});
  check_said(lancet("eval --from " + run + " --data " + (folder / "none.bin")), 3, {"none.bin"});
  check_said(lancet("eval --from " + run), 2, {"expected --data FILE"});
  check_said(lancet("eval --from " + run + " --data " + bin + " --max-sequences 0"), 2, {"max-sequences"});
}

TEST_CASE("missing models and wrong options") {
  const TemporaryFolder folder;
  const std::string run = imported(folder, "gpt2");
  const std::string generate = "generate --ids --from " + run + " --prompt '1 2' ";
  check_said(lancet("generate --ids --prompt 1 --from " + (folder / "none")), 3, {"found no folder"});
  fs::create_directories(folder / "half");
  const std::string expected = (folder / "half") +
                               ": expected checkpoints/ (a run), manifest.json (a checkpoint), or config.json with "
                               "model.safetensors or model.safetensors.index.json (Hugging Face's format), found ";
  const auto half = [&](const std::string& found) {
    for (const std::string command : {"generate --ids --prompt 1", "eval --data x", "export --to hf --out x"})
      check_said(lancet(command + " --from " + (folder / "half")), 3, {"error: " + expected + found});
  };
  half("none of them");
  fs::copy_file(fixture("qwen3_moe") + "/config.json", folder / "half/config.json");
  half("config.json alone");
  check_said(lancet("train " + folder.write("from.json", "{}") + " --set data.synthetic=true --set model.from=" +
                    (folder / "half") + " --run-dir " + (folder / "x")),
             3, {"error: " + expected + "config.json alone"});
  fs::rename(folder / "half/config.json", folder / "half/model.safetensors");
  half("no config.json");
  fs::create_directories(folder / "empty/checkpoints");
  check_said(lancet("generate --ids --prompt 1 --from " + (folder / "empty")), 3,
             {"expected a whole checkpoint, found none"});
  check_said(lancet(generate + "--temperature -1"), 2, {"temperature: expected a number from 0 on, found -1"});
  check_said(lancet(generate + "--temperature nan"), 2, {"temperature"});
  check_said(lancet(generate + "--top-p 0"), 2, {"top-p: expected a number above 0"});
  check_said(lancet(generate + "--top-p 1.01"), 2, {"top-p"});
  check_said(lancet(generate + "--top-k -3"), 2, {"top-k"});
  check_said(lancet(generate + "--max-tokens -1"), 2, {"max-tokens"});
  check_said(lancet(generate + "--dtype fp8"), 2, {"dtype"});
  const std::string ids = ": expected token ids, whole numbers below 71 with spaces between, found ";
  check_said(lancet("generate --ids --prompt '1 71' --from " + run), 2, {"error: --prompt" + ids + "'71'"});
  check_said(test::shell("echo 1 x | " LANCET_BINARY " generate --ids --from " + run), 3,
             {"error: standard input" + ids + "'x'"});
  check_said(lancet("generate --ids --prompt '' --from " + run), 2, {"--prompt: expected at least one id, found none"});
  check_said(test::shell("printf '' | " LANCET_BINARY " generate --ids --from " + run), 3,
             {"standard input: expected at least one id, found none"});
  check_said(test::shell("echo | " LANCET_BINARY " generate --ids --from " + run), 3, {"standard input"});
  check_said(test::shell(LANCET_BINARY " generate --ids --from " + run + " </tmp"), 3,
             {"error: standard input: expected text, found: Is a directory"});
  for (const char* seed : {"-1", "18446744073709551616", "1e3", "0x1", "' 1'"})
    check_said(lancet(generate + "--seed " + seed), 2,
               {"--seed: expected a whole number from 0 to 18446744073709551615"});
  check_said(lancet(generate + "--seed ''"), 2, {"--seed: expected a whole number"});
  CHECK(lancet(generate + "--max-tokens 1 --seed 18446744073709551615").code == 0);
  check_said(lancet("import --upcycle 2 --seed -1 --from " + fixture("gpt2") + " --out " + (folder / "x")), 2,
             {"--seed: expected a whole number"});
  const std::string tokenizer = "error: expected a tokenizer: --tokenizer DIR, or --ids for token ids; found none in ";
  check_said(lancet("generate --prompt good --from " + run), 2, {tokenizer + run});
  check_said(lancet("generate --prompt good --from " + fixture("mixtral")), 2, {tokenizer + fixture("mixtral")});
  check_said(lancet("eval --from " + fixture("mixtral")), 2,
             {"error: expected --data FILE, since " + fixture("mixtral") + " names no data.eval"});
  std::string long_prompt;
  for (int i = 0; i < 33; ++i) long_prompt += "7 ";
  check_said(lancet("generate --ids --prompt '" + long_prompt + "' --from " + run), 2,
             {"error: --prompt: expected at most the model's window of 32 tokens, found 33"});
  check_said(test::shell("head -c 20000000 /dev/zero | " LANCET_BINARY " generate --ids --from " + run), 3,
             {"at most 16 MiB"});

  check_said(lancet("import --from " + fixture("gpt2") + " --out " + run), 2, {"files in it"});
  check_said(lancet("import --from " + (folder / "none") + " --out " + (folder / "x")), 3, {"found no folder"});
  check_said(lancet("import --upcycle 2 --from " + fixture("gpt2_moe") + " --out " + (folder / "x")), 2, {"dense"});
  for (const char* experts : {"0", "1", "-2"})
    check_said(
        lancet("import --upcycle " + std::string(experts) + " --from " + fixture("gpt2") + " --out " + (folder / "x")),
        2, {"--upcycle: expected a whole number from 2 to 65536, found '" + std::string(experts) + "'"});
  check_said(lancet("export --to onnx --from " + run + " --out " + (folder / "x")), 2, {"onnx"});
  check_said(lancet("export --to hf --from " + run + " --out " + run), 2, {"files in it"});
  for (const char* size : {"-1", "nan", "1e7", "x"})
    check_said(lancet("export --to hf --from " + run + " --out " + (folder / "x") + " --max-shard-gb " + size), 2,
               {"--max-shard-gb: expected a number from 0 to 1000000, found"});
  check_said(lancet("import --upcycle 2 --noise nan --from " + fixture("gpt2") + " --out " + (folder / "x")), 2,
             {"--noise: expected a number from 0 to 10, found 'nan'"});
  check_said(lancet("export --to hf --from " + (folder / "none") + " --out " + (folder / "x")), 3, {"found no folder"});
  CHECK_FALSE(fs::exists(folder / "x"));
  check_said(lancet("generate --help"), 0, {"--top-p"});

  // A damaged checkpoint is not loaded.
  const std::string weights = run + "/checkpoints/step-000000/model.safetensors";
  std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(5000);
  file.put('\x55');
  file.seekp(5001);
  file.put('\x2a');
  file.close();
  check_said(lancet(generate), 3, {"damaged"});
  fs::resize_file(weights, 1000);
  check_said(lancet(generate), 3, {"expected a header of at most 992 bytes"});
}

TEST_CASE("an empty prompt starts from the end-of-text token") {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 300; ++i) text += "caf\xc3\xa9 " + std::to_string(i % 89) + " good text.\n";
  const std::string book = folder.write("book.txt", text), tok = folder / "tok", run = folder / "run";
  REQUIRE(lancet("data train-tokenizer --vocab-size 300 --out " + tok + " " + book).code == 0);
  const auto vocabulary = test::json_file(tok + "/vocab.json");
  const std::string config = folder.write("c.json", test::small_config_text);
  const std::string size = "--set model.vocab_size=" + std::to_string(vocabulary.size());
  REQUIRE(lancet("train " + config + " --set train.steps=1 --set train.save_interval=1 --set train.sample_tokens=0 " +
                 size + " --run-dir " + run)
              .code == 0);
  const std::string end = std::to_string(vocabulary["<|endoftext|>"].get<int>());
  const std::string greedy = " --temperature 0 --max-tokens 4 --past-end --only-new --from " + run;
  std::istringstream ids(result_of("generate --ids --prompt " + end + greedy));
  std::vector<data::TokenId> expected;
  for (data::TokenId id; ids >> id;) expected.push_back(id);
  CHECK(expected.size() == 4);
  const auto tokenizer = test::good(data::Tokenizer::load(tok));
  const std::string written = replace_invalid_utf8(tokenizer->decode(expected).value()) + "\n";
  CHECK(result_of("generate --prompt '' --tokenizer " + tok + greedy) == written);
  CHECK(result_of("generate --tokenizer " + tok + greedy + " </dev/null") == written);
}

// Changes a byte in the last tensor of a run's checkpoint.
static void damage(const std::string& run, int step) {
  const std::string path = run + "/checkpoints/step-00000" + std::to_string(step) + "/model-00001-of-00001.safetensors";
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto at = static_cast<std::streamoff>(fs::file_size(path)) - 9;
  file.seekg(at);
  const char byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(at);
  file.put(byte);
}

TEST_CASE("eval, generate and export use the next older checkpoint if the newest has damaged bytes") {
  const TemporaryFolder folder;
  const std::string config = folder.write("c.json", test::small_config_text), run = folder / "run";
  REQUIRE(lancet("train " + config + " --set train.steps=3 --set train.save_interval=1 --run-dir " + run).code == 0);
  const std::string generate = "generate --ids --prompt '1 2' --temperature 0 --max-tokens 5 --from ";
  const std::string older = result_of(generate + run + "/checkpoints/step-000002");
  damage(run, 3);
  const std::vector<std::string> said = {"not whole, left out: " + run + "/checkpoints/step-000003",
                                         run + "/checkpoints/step-000002: taken in their place"};
  CHECK(result_of(generate + run) == older);
  check_said(lancet(generate + run), 0, said);
  check_said(lancet("export --to hf --from " + run + " --out " + (folder / "hf")), 0, said);
  CHECK(result_of(generate + (folder / "hf")) == older);
  CHECK(result_of("eval --json --from " + run + " --data " + tokens_file(folder)).find("\"step\":2") !=
        std::string::npos);
#if defined(LANCET_HAVE_MPI)
  check_said(test::mpirun(2, generate + run), 0, said);
  CHECK(test::mpirun(2, generate + run + " 2>/dev/null").output == older);
#endif
  // A checkpoint that the user names is not replaced by an older one.
  check_said(lancet(generate + run + "/checkpoints/step-000003"), 3, {"damaged"});
  const std::string out = folder / "out/hf";
  fs::create_directory(folder / "out");
  const auto damaged = lancet("export --to hf --from " + run + "/checkpoints/step-000003 --out " + out);
  check_said(damaged, 3, {"expected the checksum"});
  CHECK(std::ranges::count(damaged.output, '\n') == 1);
  CHECK(fs::is_empty(folder / "out"));
  damage(run, 2);
  fs::remove(run + "/checkpoints/step-000001/model-00001-of-00001.safetensors");
  check_said(lancet(generate + run), 3,
             {"expected a whole checkpoint among the 3 in " + run + "/checkpoints, found none"});
}

TEST_CASE("an export that takes an older checkpoint says once that it has no tokenizer") {
  const TemporaryFolder folder;
  const std::string tok = folder / "tok", run = folder / "run";
  REQUIRE(data::train_tokenizer("a text", {.vocab_size = 257, .progress = {}})->save(tok).ok());
  REQUIRE(lancet("train " + folder.write("c.json", test::small_config_text) +
                 " --set train.steps=3 --set train.save_interval=1 --set model.vocab_size=300 --set data.tokenizer=" +
                 tok + " --run-dir " + run)
              .code == 0);
  fs::remove_all(tok);
  damage(run, 3);
  damage(run, 2);
  check_said(lancet("export --to hf --from " + run + " --out " + (folder / "hf")), 0,
             {"warning: " + tok + ": the run's tokenizer was not found from the current folder and is not exported",
              run + "/checkpoints/step-000001: taken in their place"});
}

TEST_CASE("models that do not fit the disk or the memory are refused before anything is written or allocated") {
  const TemporaryFolder folder;
  // A dense model of 67 MB, of which only the header is on the disk, upcycled to 65536 experts: 4 TB.
  auto model = test::json_file(fixture("gpt2") + "/config.json");
  model["n_layer"] = 1, model["n_embd"] = 1024, model["n_head"] = 16, model["n_inner"] = 8192;
  const std::string hf = folder / "hf";
  fs::create_directories(hf);
  std::ofstream(hf + "/config.json") << json_text(model);
  write_empty_model(model, hf + "/model.safetensors");
  check_said(lancet("import --upcycle 65536 --moe-layer-freq 1 --from " + hf + " --out " + (folder / "run")), 3,
             {folder / "run: expected 4400749 MB free on its disk, found "});
  CHECK_FALSE(fs::exists(folder / "run"));

  // A checkpoint whose manifest claims the same size.
  const std::string run = imported(folder, "gpt2"), manifest = run + "/checkpoints/step-000000/manifest.json";
  auto parsed = test::good(checkpoint::parse_manifest(file_text(manifest), manifest));
  auto config = test::good(config::parse(parsed->config, manifest));
  config->model.n_embd = 16384, config->model.n_head = 128, config->model.n_layer = 1000, config->model.n_inner.reset();
  parsed->config = config::to_json(*config);
  std::ofstream(manifest) << checkpoint::to_json(*parsed);
  const auto needed = [&](const std::string& command, const std::string& what) {
    const auto refused = lancet(command + " --from " + run);
    check_said(refused, 2, {"MB of free memory a rank for " + what + ", found"});
    const std::string expected = "expected ";
    return std::atoll(refused.output.c_str() + refused.output.find(expected) + expected.size());
  };
  const auto cache = needed("generate --ids --prompt 1", "the weights and 4194 MB of keys and values") -
                     needed("eval --data none", "the weights");
  CHECK(std::abs(cache - 4194) <= 1);  // MB, rounded down: 2 * 1000 layers * 32 positions * 16384 floats
}

#if defined(LANCET_HAVE_MPI)
TEST_CASE("only one of several ranks prints the text, and nothing else is printed") {
  const TemporaryFolder folder;
  const std::string run = imported(folder, "gpt2_moe"), out = folder / "out", err = folder / "err";
  const std::string arguments = "generate --ids --temperature 0 --max-tokens 12 --from " + run;
  const std::string alone = result_of(arguments + " --prompt '1 2 3'");
  for (const char* input : {"--prompt '1 2 3'", "< $PROMPT"}) {
    const std::string source = std::string(input) == "< $PROMPT" ? "< " + folder.write("prompt", "1 2 3\n") : input;
    REQUIRE(test::mpirun(2, arguments + " " + source + " >" + out + " 2>" + err).code == 0);
    CHECK(file_text(out) == alone);
    CHECK(file_text(err).find("12 tokens after a prompt of 3") != std::string::npos);
  }
}
#endif

TEST_CASE("an upcycled model can be trained further and generates") {
  const TemporaryFolder folder;
  const std::string run = folder / "run";
  check_said(lancet("import --upcycle 4 --noise 0.05 --from " + fixture("gpt2") + " --out " + run), 0, {"step-000000"});
  const auto config = test::json_file(run + "/config.json");
  CHECK(config["model"]["num_local_experts"] == 4);
  CHECK(config["model"]["moe_layer_freq"] == 2);
  CHECK(result_of("generate --ids --prompt 3 --max-tokens 4 --from " + run).starts_with("3 "));
}

}  // namespace lancet
