// Output and checks of import and export before they start their work.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "cli/commands.h"
#include "cli/support.h"
#include "lancet/base/files.h"
#include "lancet/base/hash.h"
#include "lancet/base/json.h"
#include "lancet/checkpoint/checkpoint.h"
#include "lancet/checkpoint/safetensors.h"
#include "lancet/data/tokenizer.h"
#include "program.h"
#include "reference/models.h"

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
  std::filesystem::copy(test::reference_model("gpt2"), hf);
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
  std::ifstream config(run + "/config.json");
  const auto kept = test::json_in(std::string(std::istreambuf_iterator<char>(config), {}));
  CHECK(kept["data"]["tokenizer"] == (removed.empty() ? run + "/hugging_face" : ""));
}

TEST_CASE(
    "an import of a folder with a bad tokenizer.json leaves the tokenizer out, and keeps the ids that end texts") {
  const test::TemporaryFolder folder;
  const std::string hf = folder / "hf";
  std::filesystem::copy(test::reference_model("gpt2"), hf);
  folder.write("hf/tokenizer.json", "{}");
  folder.write("hf/generation_config.json", R"({"eos_token_id": [3, 60, 99999], "bos_token_id": 5})");
  const auto outcome = test::lancet("import --from " + hf + " --out " + (folder / "run"));
  INFO(outcome.output);
  CHECK(outcome.code == 0);
  CHECK(outcome.lines_with("warning: " + hf + "/tokenizer.json: decoder.type: expected one of ") == 1);
  CHECK(outcome.lines_with("found null; the model is imported without its tokenizer") == 1);
  REQUIRE(test::lancet("export --to hf --from " + (folder / "run") + " --out " + (folder / "out")).code == 0);
  for (const char* file : {"/tokenizer.json", "/generation_config.json"})
    CHECK(read_file(folder / "out" + file, "a copy").value() == read_file(hf + file, "a file").value());
  CHECK(test::json_in(read_file(folder / "run/generation_config.json", "the run's").value())["eos_token_id"] ==
        test::json_in("[3, 60]"));
  CHECK(outcome.lines_with("eos_token_id: expected ids below the model's 71, found 99999; such ids are left out") == 1);
  std::string ids;  // the tokens that the model would draw but for the end
  for (int id = 0; id < 71; ++id) ids += (id > 0 ? ", " : "") + std::to_string(id);
  folder.write("run/generation_config.json", "{\"eos_token_id\": [" + ids + "]}");
  const auto ended = test::lancet("generate --ids --prompt '1 2' --max-tokens 4 --from " + (folder / "run"));
  CHECK(ended.lines_with("0 tokens after a prompt of 2") == 1);
}

TEST_CASE("an import keeps a tokenizer beside a malformed generation_config.json, and says each thing once") {
  const test::TemporaryFolder folder;
  const std::string hf = folder / "hf";
  std::filesystem::copy(test::reference_model("gpt2"), hf);
  const std::string text = folder.write("text", "a b");
  REQUIRE(test::lancet("data train-tokenizer --vocab-size 257 --out " + hf + " " + text).code == 0);
  folder.write("hf/tokenizer_config.json", R"({"add_prefix_space": true})");
  const std::string content = GENERATE("{", R"({"eos_token_id": "</s>"})");
  folder.write("hf/generation_config.json", content);
  const auto outcome = test::lancet("import --from " + hf + " --out " + (folder / "run"));
  INFO(outcome.output);
  CHECK(outcome.code == 0);
  CHECK(outcome.lines_with("warning: ") == 2);
  CHECK(outcome.lines_with("warning: " + hf + "/generation_config.json:") == 1);
  CHECK(outcome.lines_with("add_prefix_space is not applied") == 1);
  REQUIRE(test::lancet("export --to hf --from " + (folder / "run") + " --out " + (folder / "out")).code == 0);
  CHECK(read_file(folder / "out/generation_config.json", "a copy").value() == content);
}

namespace {

// A fixture's folder with small files beside it.
std::string family_folder(const test::TemporaryFolder& folder, const std::string& name) {
  const std::string hf = folder / name;
  std::filesystem::copy(test::reference_model(name), hf);
  std::filesystem::remove(hf + "/logits.safetensors");
  folder.write(name + "/generation_config.json", R"({"eos_token_id": 2,  "temperature": 0.6})");
  folder.write(name + "/special_tokens_map.json", R"({"pad_token":   "<pad>"})");
  folder.write(name + "/chat_template.jinja", "{{ messages }}");
  std::filesystem::create_directory(hf + "/additional_chat_templates");
  folder.write(name + "/additional_chat_templates/tool_use.jinja", "{{ tools }}");
  folder.write(name + "/pytorch_model.bin.index.json", R"({"weight_map": {"a": "pytorch_model-00001-of-00001.bin"}})");
  return hf;
}

// Compares all tensors, fields and small files of two folders.
void check_same_folder(const std::string& hf, const std::string& out, const std::string& config_of = {}) {
  const auto before = checkpoint::SafetensorsFile::open(hf + "/model.safetensors").value(),
             after = checkpoint::SafetensorsFile::open(out + "/model.safetensors").value();
  CHECK(before.tensors().size() == after.tensors().size());
  for (const checkpoint::TensorInfo& tensor : before.tensors()) {
    INFO(tensor.name);
    const checkpoint::TensorInfo* found = after.find(tensor.name);
    REQUIRE(found);
    CHECK(to_string(*found) == to_string(tensor));
    std::vector<std::byte> old_bytes(tensor.bytes()), new_bytes(found->bytes());
    REQUIRE(before.read(tensor, 0, old_bytes).ok());
    REQUIRE(after.read(*found, 0, new_bytes).ok());
    CHECK(old_bytes == new_bytes);
  }
  const auto text = [](const std::string& path) { return read_file(path, "a file").value(); };
  CHECK(test::json_in(text(out + "/config.json")) ==
        test::json_in(text((config_of.empty() ? hf : config_of) + "/config.json")));
  for (const char* file : {"/generation_config.json", "/special_tokens_map.json", "/chat_template.jinja",
                           "/additional_chat_templates/tool_use.jinja"})
    CHECK(text(out + file) == text(hf + file));
  CHECK_FALSE(std::filesystem::exists(out + "/pytorch_model.bin.index.json"));  // the files that it lists are left out
}

}  // namespace

TEST_CASE("a model that was imported and not trained is exported as it was, directly as well") {
  const std::string name = GENERATE(from_range(test::reference_models()));
  if (name.starts_with("gpt2")) return;  // buffers are not exported, and what has experts is this program's own
  const test::TemporaryFolder folder;
  const std::string hf = family_folder(folder, name), run = folder / "run", out = folder / "out";
  const auto imported = test::lancet("import --from " + hf + " --out " + run);
  INFO(imported.output);
  REQUIRE(imported.code == 0);
  REQUIRE(test::lancet("export --to hf --from " + run + " --out " + out).code == 0);
  check_same_folder(hf, out);
  REQUIRE(test::lancet("export --to hf --from " + hf + " --out " + (folder / "direct")).code == 0);
  check_same_folder(hf, folder / "direct");
  const auto narrow = test::lancet("export --to hf --dtype bf16 --from " + run + " --out " + (folder / "bf16"));
  REQUIRE(narrow.code == 0);
  const auto all = checkpoint::SafetensorsFile::open(folder / "bf16/model.safetensors").value();
  for (const checkpoint::TensorInfo& tensor : all.tensors()) CHECK(tensor.dtype == "BF16");
}

TEST_CASE("a field that is not known is an error unless it is accepted, and is exported again") {
  const test::TemporaryFolder folder;
  const std::string hf = family_folder(folder, "qwen3");
  auto config = test::json_in(read_file(hf + "/config.json", "a config").value());
  config["new_scale"] = 2;
  folder.write("qwen3/config.json", json_text(config));
  const std::string import = "import --from " + hf + " --out " + (folder / "run");
  const auto refused = test::lancet(import);
  CHECK(refused.code == 3);
  CHECK(refused.lines_with("error: " + hf + "/config.json: new_scale: expected a field of \"qwen3\" that is known") ==
        1);
  CHECK_FALSE(std::filesystem::exists(folder / "run"));
  for (const std::string& command : {import, "export --to hf --from " + hf + " --out " + (folder / "out"),
                                     "eval --data none.bin --from " + hf, "generate --prompt a --from " + hf}) {
    const auto needless = test::lancet(command + " --accept-field new_scale --accept-field newer");
    INFO(needless.output);
    CHECK(needless.code == 2);
    CHECK(needless.lines_with("error: --accept-field newer: expected a field of " + hf +
                              "/config.json, found none of that name") == 1);
  }
  REQUIRE(test::lancet(import + " --accept-field new_scale").code == 0);
  REQUIRE(test::lancet("export --to hf --from " + (folder / "run") + " --out " + (folder / "out")).code == 0);
  check_same_folder(hf, folder / "out");
}

TEST_CASE("a model is read from a whole checkpoint, whatever is left of the files of its run") {
  const test::TemporaryFolder folder;
  const std::string run = folder / "run", bounds = run + "/generation_config.json";
  REQUIRE(test::lancet("import " + from_gpt2 + " --out " + run).code == 0);
  std::filesystem::remove_all(run + "/hugging_face");
  folder.write("run/generation_config.json", R"({"eos_token_id": 7})");
  folder.write("run/config.json", GENERATE("", R"({"model": {"n_la)"));
  const auto sound = test::lancet("export --to hf --from " + run + " --out " + (folder / "sound"));
  INFO(sound.output);
  CHECK(sound.code == 0);
  CHECK(sound.lines_with("warning: ") == 0);
  CHECK(test::json_in(read_file(folder / "sound/config.json", "").value())["eos_token_id"] == 7);
  folder.write("run/generation_config.json", "");
  const auto without = test::lancet("export --to hf --from " + run + " --out " + (folder / "without"));
  INFO(without.output);
  CHECK(without.code == 0);
  CHECK(without.lines_with("warning: ") == 1);
  CHECK(without.lines_with("warning: " + bounds + ": expected JSON, found no text; the ids that it names") == 1);
  CHECK(test::json_in(read_file(folder / "without/config.json", "").value())["eos_token_id"].is_null());
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

// A model meets tokens or a tokenizer of the same vocabulary size that are not those it was trained with.

namespace {

using test::lancet;
using test::TemporaryFolder;

// A tokenizer with 260 ids, and a token file that it made: NAME and NAME.bin. Returns the tokenizer's hash.
std::string make_tokens(const TemporaryFolder& folder, const std::string& name, const std::string& words) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += words + "\n";
  const std::string book = folder.write(name + ".txt", text), tok = folder / name;
  REQUIRE(lancet("data train-tokenizer --vocab-size 260 --out " + tok + " " + book).code == 0);
  REQUIRE(lancet("data tokenize --tokenizer " + tok + " --out " + tok + ".bin " + book).code == 0);
  return hex(data::Tokenizer::load(tok)->hash());
}

}  // namespace

TEST_CASE("a model and tokens or a tokenizer that do not belong together are refused") {
  const TemporaryFolder folder;
  const std::string own = make_tokens(folder, "own", "aa bb cc aa bb cc"),
                    other = make_tokens(folder, "other", "xy yz zx xy yz zx");
  REQUIRE(own != other);
  const std::string config = folder.write("small.json", test::small_config_text), run = folder / "run";
  const auto train = [&](const std::string& tokens, const std::string& to, const std::string& more) {
    return lancet("train " + config + " --set data.synthetic=false --set model.vocab_size=260 --set data.train=" +
                  (folder / tokens) + ".bin --set train.save_interval=1 --run-dir " + to + " " + more);
  };
  REQUIRE(train("own", run, "--set train.steps=2").code == 0);
  const std::string checkpoint = run + "/checkpoints/step-000002";
  const auto difference = [&](const std::string& found, const std::string& of) {
    return found + ": expected the tokenizer of " + of + " (" + own + "), found another (" + other + ")";
  };
  const std::string generate = "generate --prompt aa --max-tokens 2 --from " + run + " --tokenizer ";
  check_said(lancet("eval --from " + run + " --data " + (folder / "other.bin")), 3,
             {difference(folder / "other.bin", checkpoint)});
  check_said(lancet("eval --from " + run + " --data " + (folder / "own.bin")), 0, {"loss "});
  check_said(lancet(generate + (folder / "other")), 3, {difference(folder / "other", checkpoint)});
  check_said(lancet(generate + (folder / "own")), 0, {"2 tokens after a prompt of "});
  check_said(train("other", run, "--set train.steps=4"), 3, {difference(folder / "other.bin", checkpoint)});
  check_said(train("own", run, "--set train.steps=4"), 0, {"step 4/4 | loss "});
  check_said(train("other", folder / "tuned", "--init-from " + checkpoint), 3,
             {difference(folder / "other.bin", checkpoint)});
  CHECK_FALSE(std::filesystem::exists(folder / "tuned"));
  check_said(train("own", folder / "tuned", "--set train.steps=1 --init-from " + checkpoint), 0, {"step 1/1 | loss "});
  check_said(train("own", folder / "new", "--set data.eval=" + (folder / "other.bin")), 3,
             {difference(folder / "other.bin", folder / "own.bin")});

  // A model whose tokens are not known goes with any.
  const std::string path = checkpoint + "/manifest.json";
  auto manifest = checkpoint::parse_manifest(*read_file(path, "it"), "it");
  REQUIRE(manifest.ok());
  CHECK(hex(manifest->tokenizer_hash) == own);
  manifest->tokenizer_hash = 0;
  REQUIRE(write_file(path, checkpoint::to_json(*manifest)).ok());
  check_said(lancet("eval --from " + checkpoint + " --data " + (folder / "other.bin")), 0, {"loss "});
  check_said(train("other", folder / "any", "--set train.steps=1 --init-from " + checkpoint), 0, {"step 1/1 | loss "});
}

TEST_CASE("every command reads tokenizer.json, and exports and imports keep it byte for byte") {
  const TemporaryFolder folder;
  std::string vocabulary = R"("<s>": 0, "</s>": 1)";  // then the bytes, "▁", "a", "b"
  for (int byte = 0; byte < 256; ++byte) vocabulary += fmt::format(R"(,"<0x{:02X}>": {})", byte, 2 + byte);
  vocabulary += R"(, "▁": 258, "a": 259, "b": 260, "ab": 261, "▁ab": 262)";
  const std::string content = R"({"version" : "1.0", "added_tokens": [
    {"id": 0, "content": "<s>", "normalized": false, "special": true},
    {"id": 1, "content": "</s>", "normalized": false, "special": true}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "pre_tokenizer": null,
    "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
      {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "byte_fallback": true, "merges": [["a", "b"], "▁ ab"], "vocab": {)" +
                              vocabulary + "}}}";
  const std::string tok = folder / "tok";
  std::filesystem::create_directory(tok);
  const std::string file = folder.write("tok/tokenizer.json", content);
  folder.write("tok/tokenizer_config.json", R"({"add_bos_token": true, "bos_token": "<s>", "eos_token": "</s>"})");
  std::string text;
  for (int i = 0; i < 200; ++i) text += "ab é ab\n";
  const std::string book = folder.write("book.txt", text), tokens = folder / "tokens.bin", run = folder / "run";
  check_said(lancet("data encode --text 'ab aé' --tokenizer " + tok), 0, {"0 262 258 259 197 171"});
  check_said(lancet("data tokenize --tokenizer " + tok + " --out " + tokens + " " + book), 0, {"MB/s"});
  const std::string config = folder.write("small.json", test::small_config_text);
  const auto train = [&](int ids) {
    return lancet(
        fmt::format("train {} --set data.synthetic=false --set model.vocab_size={} --set data.train={} "
                    "--set data.tokenizer={} --set train.sample_tokens=2 --set train.sample_prompt=ab "
                    "--set train.steps=1 --set train.save_interval=1 --run-dir {}",
                    config, ids, tokens, tok, run));
  };
  check_said(train(262), 3, {"expected a vocabulary of at most model.vocab_size = 262 ids in " + tok});
  check_said(train(263), 0, {"sample: <s>"});
  check_said(lancet("eval --data " + tokens + " --from " + run), 0, {"loss "});
  const auto generated = lancet("generate --prompt 'ab aé' --max-tokens 0 --from " + run);
  CHECK(generated.output.starts_with("ab aé\n"));
  CHECK(generated.lines_with("after a prompt of 6") == 1);  // with "<s>"
  REQUIRE(lancet("export --to hf --from " + run + " --out " + (folder / "hf")).code == 0);
  REQUIRE(lancet("import --from " + (folder / "hf") + " --out " + (folder / "again")).code == 0);
  for (const char* copy : {"hf/tokenizer.json", "again/hugging_face/tokenizer.json"})
    CHECK(*read_file(folder / copy, "a tokenizer") == content);
  check_said(lancet("generate --prompt ab --max-tokens 1 --from " + (folder / "again")), 0, {"1 tokens after"});
  folder.write("tok/tokenizer.json", content.substr(0, 500));
  check_said(lancet("data encode --text a --tokenizer " + tok), 3, {"error: " + file + ":"});
}

TEST_CASE("an export and an import keep a model's tokenizer, and a replaced one is refused") {
  const TemporaryFolder folder;
  const std::string own = make_tokens(folder, "own", "aa bb cc aa bb cc"),
                    other = make_tokens(folder, "other", "xy yz zx xy yz zx");
  const std::string config = folder.write("small.json", test::small_config_text), run = folder / "run";
  REQUIRE(lancet("train " + config + " --set data.synthetic=false --set model.vocab_size=260 --set data.train=" +
                 (folder / "own.bin") + " --set data.tokenizer=" + (folder / "own") +
                 " --set train.steps=1 --set train.save_interval=1 --run-dir " + run)
              .code == 0);
  REQUIRE(lancet("export --to hf --from " + run + " --out " + (folder / "hf")).code == 0);
  REQUIRE(lancet("import --from " + (folder / "hf") + " --out " + (folder / "again")).code == 0);
  const std::string difference = " (" + own + "), found another (" + other + ")";
  check_said(lancet("eval --from " + (folder / "again") + " --data " + (folder / "other.bin")), 3,
             {(folder / "other.bin") + ": expected the tokenizer of " + (folder / "again/checkpoints/step-000000") +
              difference});
  for (const std::string file : {"/vocab.json", "/merges.txt"})
    std::filesystem::copy_file((folder / "other") + file, (folder / "own") + file,
                               std::filesystem::copy_options::overwrite_existing);
  check_said(lancet("export --to hf --from " + run + " --out " + (folder / "x")), 3,
             {(folder / "own") + ": expected the tokenizer of " + run + "/checkpoints/step-000001" + difference});
  check_said(lancet("generate --prompt aa --from " + run), 3, {difference});
}

TEST_CASE("a run on the tokenizer of its model's folder is exported with the folder's files as they are") {
  const TemporaryFolder folder;
  make_tokens(folder, "own", "aa bb cc aa bb cc");
  const std::string hf = folder / "hf", run = folder / "run";
  const std::string set = " --set data.train=" + (folder / "own.bin") +
                          " --set train.steps=1 --set train.save_interval=1 --set data.tokenizer=";
  REQUIRE(lancet("train " + folder.write("small.json", test::small_config_text) +
                 " --set data.synthetic=false --set model.vocab_size=260 --run-dir " + run + set + (folder / "own"))
              .code == 0);
  REQUIRE(lancet("export --to hf --from " + run + " --out " + hf).code == 0);
  const std::string ends = R"({"eos_token_id": [65,  256], "bos_token_id": 256})";
  folder.write("hf/generation_config.json", ends);
  const std::string tuned = folder.write("tuned.json", R"({"model": {"from": ")" + hf + R"("}, "threads": 1})");
  const auto train =
      lancet("train " + tuned + " --set train.micro_batch_size=2 --run-dir " + (folder / "tuned") + set + hf);
  INFO(train.output);
  REQUIRE(train.code == 0);
  REQUIRE(lancet("export --to hf --from " + (folder / "tuned") + " --out " + (folder / "out")).code == 0);
  CHECK(*read_file(folder / "out/generation_config.json", "a copy") == ends);
  // Another tokenizer's files come in their place.
  folder.write("hf/generation_config.json", R"({"eos_token_id": [65, 66, 256]})");
  REQUIRE(lancet("export --to hf --from " + (folder / "tuned") + " --out " + (folder / "more")).code == 0);
  CHECK(test::json_in(*read_file(folder / "more/generation_config.json", "a copy"))["eos_token_id"] ==
        test::json_in("[65, 66, 256]"));
}

}  // namespace lancet
