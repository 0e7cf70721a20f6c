// Wrong folders in Hugging Face's format, and their error messages.
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "good.h"
#include "lancet/base/files.h"
#include "lancet/base/json.h"
#include "lancet/models/hugging_face.h"
#include "lancet/run/run_folder.h"
#include "temporary_folder.h"
#include "text.h"
#include "train/hugging_face_files.h"

namespace lancet {

using namespace models;
using namespace lancet::test::hf;

TEST_CASE("tensors that are missing, unknown, of another shape or type are named") {
  const std::string name = GENERATE("gpt2", "gpt2_moe");
  const std::string prefix = name == "gpt2" ? "" : "transformer.";
  auto drop = [&](const std::string& tensor) {
    return [=](File& file) { std::erase_if(file.tensors, [&](const auto& t) { return t.name == prefix + tensor; }); };
  };
  check_error(Changed(name, drop("h.1.attn.c_proj.bias")).error(), ExitCode::data,
              {"model.safetensors", "expected tensor transformer.h.1.attn.c_proj.bias [24]"});
  check_error(Changed(name,
                      [](File& file) {
                        file.tensors.push_back({"h.1.attn.extra", "F32", {1}});
                        file.bytes["h.1.attn.extra"].resize(4);
                      })
                  .error(),
              ExitCode::data, {"1 more: h.1.attn.extra"});
  check_error(Changed(name,
                      [&](File& file) {
                        file[prefix + "wpe.weight"].shape = {24, 32};
                      })
                  .error(),
              ExitCode::data, {"wpe.weight: expected [32,24]", "found F32[24,32]"});
  check_error(Changed(name, [&](File& file) { file[prefix + "wpe.weight"].dtype = "I32"; }).error(), ExitCode::data,
              {"wpe.weight", "found I32[32,24]"});
  check_error(Changed(name,
                      [&](File& file) {
                        file[prefix + "h.1.attn.c_attn.weight"].shape = {72, 24};
                      })
                  .error(),
              ExitCode::data, {"c_attn.weight: expected [24,72]"});
  check_error(Changed(name,
                      [&](File& file) {
                        file.tensors.push_back({"lm_head.weight", "F32", file[prefix + "wte.weight"].shape});
                        file.bytes["lm_head.weight"] = file.bytes[prefix + "wte.weight"];
                        file.bytes["lm_head.weight"][0] ^= std::byte(1);
                      })
                  .error(),
              ExitCode::data, {"lm_head.weight", "tied"});
  if (name == "gpt2_moe") {
    check_error(Changed("gpt2_moe_shared", drop("h.1.moe.shared_experts.c_proj.bias")).error(), ExitCode::data,
                {"expected tensor transformer.h.1.moe.shared_experts.c_proj.bias [16]"});
    check_error(Changed(name, drop("h.2.moe.experts.3.c_fc.weight")).error(), ExitCode::data,
                {"h.2.moe.experts.3.c_fc.weight [24,96]"});
  }
}

TEST_CASE("weights that are not finite are refused with the tensor's name") {
  const std::string name = GENERATE("gpt2", "gpt2_moe");
  const std::string tensor = std::string(name == "gpt2" ? "" : "transformer.") + "h.1.mlp.c_fc.weight";
  const std::uint32_t bits = GENERATE(0x7f800000u, 0xff800000u, 0x7fc00001u);  // infinities, NaN
  check_error(Changed(name, [&](File& file) { std::memcpy(file.bytes[tensor].data() + 4 * 30, &bits, 4); }).error(),
              ExitCode::data,
              {"model.safetensors: " + tensor + ": expected finite numbers, found a non-finite one at element 30"});
  const std::uint16_t half = GENERATE(0x7f80, 0x7c00);  // infinity as BF16, as F16
  const std::string dtype = half == 0x7f80 ? "BF16" : "F16";
  check_error(Changed(name,
                      [&](File& file) {
                        file[tensor].dtype = dtype;
                        auto& bytes = file.bytes[tensor];
                        bytes.assign(bytes.size() / 2, std::byte(0));
                        std::memcpy(bytes.data() + 2 * 7, &half, 2);
                      })
                  .error(),
              ExitCode::data, {tensor + ": expected finite numbers, found a non-finite one at element 7"});
}

TEST_CASE("wrong configs are refused, however large a model they request") {
  const auto [field, value, code, said] = GENERATE(table<std::string, std::string, ExitCode, std::string>({
      {"model_type", "\"bloom\"", ExitCode::data, "config.json: model_type: expected one of \"gpt2\", \"dots1\""},
      {"new_field", "1", ExitCode::data,
       "config.json: new_field: expected a field of \"gpt2\" that is known here, found another one; --accept-field "
       "new_field passes it over"},
      {"n_embd", "null", ExitCode::data, "n_embd"},
      {"n_layer", "10000", ExitCode::data, "expected tensor transformer.h.3.ln_1.weight"},
      {"vocab_size", "2147483647", ExitCode::data, "wte.weight: expected [2147483647,24]"},
      {"n_head", "7", ExitCode::data, "n_head"},
      {"n_layer", "-1", ExitCode::data, "n_layer"},
      {"n_inner", "100", ExitCode::data, "c_fc.weight: expected [24,100]"},
      {"activation_function", "\"relu\"", ExitCode::data, "activation_function: expected \"gelu_new\""},
      {"tie_word_embeddings", "false", ExitCode::data, "tie_word_embeddings"},
      {"scale_attn_by_inverse_layer_idx", "true", ExitCode::data, "scale_attn_by_inverse_layer_idx"},
  }));
  INFO(field << " = " << value);
  check_error(
      Changed(
          "gpt2", [](File&) {}, [&, f = field, v = value](nlohmann::json& config) { config[f] = test::json_in(v); })
          .error(),
      code, {said});
  check_error(Changed(
                  "gpt2_moe", [](File&) {},
                  [](nlohmann::json& config) {
                    config["num_local_experts"] = 65536;
                    config["n_layer"] = 10000;
                  })
                  .error(),
              ExitCode::data, {"h.0.moe.gate.weight"});
  check_error(Changed(
                  "gpt2_moe", [](File&) {}, [](nlohmann::json& config) { config["moe_layer_freq"] = 0; })
                  .error(),
              ExitCode::data, {"moe_layer_freq: expected 1 or more in a gpt2_moe, found 0"});
}

TEST_CASE("a field that config.json has twice, under its older and its newer name, says the same in both") {
  const auto error_with = [](const std::string& name, const nlohmann::json& fields) {
    const Changed changed(
        name, [](File&) {}, [&](nlohmann::json& config) { config.update(fields); });
    const auto model = import_hugging_face(changed.folder / "");
    const std::string at = (changed.folder / "config.json") + ": ";
    if (model.ok()) return std::string();
    CHECK(model.error().code == ExitCode::data);
    CHECK(model.error().message.starts_with(at));
    return model.error().message.substr(std::min(at.size(), model.error().message.size()));
  };
  const nlohmann::json linear{{"rope_type", "linear"}, {"factor", 4}}, older{{"type", "linear"}, {"factor", 4.0}};
  auto newer = linear;
  newer["rope_theta"] = 10000;
  for (const auto& [scaling, parameters] : std::vector<std::pair<nlohmann::json, nlohmann::json>>{
           {linear, newer},
           {older, newer},
           {nullptr, newer},
           {older, nullptr},
           {nullptr, {{"rope_type", "default"}}},
           {{{"type", "default"}}, {{"rope_theta", 10000.0}, {"rope_type", "default"}}}})
    CHECK(error_with("llama", {{"rope_scaling", scaling}, {"rope_parameters", parameters}}) == "");
  CHECK(error_with("llama", {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}, {"rope_parameters", newer}}) ==
        R"(rope_scaling and rope_parameters: expected the same in both, found {"factor":2,"type":"linear"} and )"
        R"({"factor":4,"rope_type":"linear"})");
  CHECK(error_with("llama", {{"rope_scaling", linear}, {"rope_parameters", {{"rope_type", "default"}}}}) ==
        R"(rope_scaling and rope_parameters: expected the same in both, found {"factor":4,"rope_type":"linear"} and )"
        "null");
  CHECK(error_with("llama", {{"rope_parameters", {{"rope_theta", 500000}}}}) ==
        "rope_theta and rope_parameters: expected the same in both, found 10000.0 and 500000");
  CHECK(error_with("llama", {{"rope_parameters", {{"rope_type", 3}}}})
            .starts_with("rope_parameters.rope_type: expected one of"));
  CHECK(error_with("llama", {{"rope_parameters", 3}}) == "rope_parameters: expected an object, found 3");
  const nlohmann::json experts = test::json_in(text(fixture("qwen3_moe") / "config.json"))["num_experts"];
  CHECK(error_with("qwen3_moe", {{"num_local_experts", experts}}) == "");
  CHECK(error_with("qwen3_moe", {{"num_local_experts", 2}}) ==
        fmt::format("num_experts and num_local_experts: expected the same in both, found {} and 2", experts.dump()));
}

TEST_CASE("errors have the fields' names as the file has them") {
  const auto [name, fields, said] = GENERATE(table<std::string, std::string, std::string>({
      {"llama", R"({"num_attention_heads": 5})",
       "hidden_size: expected a multiple of num_attention_heads = 5, found 16"},
      {"llama", R"({"num_hidden_layers": 0})", "num_hidden_layers: expected an integer in [1, 10000], found 0"},
      {"llama", R"({"rope_parameters": {"rope_theta": -1}, "rope_theta": null})",
       "rope_parameters.rope_theta: expected a number in "},
      {"gpt2", R"({"n_head": 7})", "n_embd: expected a multiple of n_head = 7, found 24"},
      {"qwen3_moe", R"({"num_experts": null, "num_local_experts": -2})", "num_local_experts: expected an integer in "},
      {"qwen3_moe", R"({"num_experts_per_tok": 7})",
       "num_experts_per_tok: expected at most the layer's 6 experts, found 7"},
  }));
  const Changed changed(
      name, [](File&) {},
      [fields = test::json_in(fields)](nlohmann::json& config) {
        config.update(fields);
        for (const auto& [field, value] : fields.items())
          if (value.is_null()) config.erase(field);
      });
  const Error error = changed.error();
  CHECK(error.code == ExitCode::data);
  CHECK(error.message.starts_with((changed.folder / "config.json: ") + said));
}

TEST_CASE("null in place of a field that the family needs is no value") {
  const auto [name, field] = GENERATE(table<std::string, std::string>({
      {"qwen2_moe", "shared_expert_intermediate_size"},
      {"qwen2_moe", "moe_intermediate_size"},
      {"olmoe", "intermediate_size"},
      {"gpt2", "n_layer"},
  }));
  const Changed changed(
      name, [](File&) {}, [f = field](nlohmann::json& config) { config[f] = nullptr; });
  const Error error = changed.error();
  CHECK(error.code == ExitCode::data);
  CHECK(error.message == (changed.folder / "config.json") + ": " + field + ": expected a value, found null");
}

TEST_CASE("a small file that cannot be copied is named, and no folder is left") {
  const Changed changed("llama", [](File&) {});
  const std::string bad = GENERATE("chat_template.jinja", "special_tokens_map.json");
  const std::string file = changed.folder / bad;
  std::string found = "no regular file";
  SECTION("a folder") { fs::create_directory(file); }
  SECTION("a link to nothing") {
    fs::create_symlink("../blobs/0", file);
    found = "no such file";
  }
  const std::string said = file + ": expected a model's file, found " + found;
  HuggingFaceModel model = import_ok(changed.folder / "");
  const test::TemporaryFolder out;
  const Error exported = test::refused(
      export_hugging_face(model.config.model, values_of(model.store), out / "out", {.source = changed.folder / ""}));
  CHECK(exported.code == ExitCode::data);
  CHECK(exported.message == said);
  const Error kept = test::refused(model.imported.folder().keep_files(out / "kept"));
  CHECK(kept.code == ExitCode::data);
  CHECK(kept.message == said);
  CHECK(out.names().empty());
}

TEST_CASE("wrong folders and indices") {
  const test::TemporaryFolder folder;
  check_error(import_hugging_face(folder / "none").error(), ExitCode::data, {"no folder"});
  check_error(import_hugging_face(folder / "").error(), ExitCode::data, {"config.json"});
  fs::copy_file(fixture("gpt2") / "config.json", folder / "config.json");
  check_error(import_hugging_face(folder / "").error(), ExitCode::data, {"found neither"});

  HuggingFaceModel model = import_ok(fixture("gpt2"));
  REQUIRE(export_hugging_face(model.config.model, values_of(model.store), folder / "s", {.shard_bytes = 40000}).ok());
  const fs::path index = folder / "s/model.safetensors.index.json";
  const auto good = test::json_in(text(index));
  auto with = [&](const std::function<void(nlohmann::json&)>& change) {
    auto changed = good;
    change(changed);
    std::ofstream(index) << json_text(changed);
    return import_hugging_face(folder / "s").error();
  };
  for (const char* path : {"../model.safetensors", "/etc/passwd", "..", "", "a/b"})
    check_error(with([&](auto& j) { j["weight_map"]["transformer.wpe.weight"] = path; }), ExitCode::data,
                {"transformer.wpe.weight", "file in this folder"});
  check_error(with([](auto& j) { j["weight_map"]["transformer.wpe.weight"] = 3; }), ExitCode::data, {"found 3"});
  check_error(with([](auto& j) { j["weight_map"]["transformer.wpe.weight"] = "none.safetensors"; }), ExitCode::data,
              {"safetensors"});
  check_error(with([](auto& j) { j["weight_map"].erase("transformer.wpe.weight"); }), ExitCode::data,
              {"lists for it", "transformer.wpe.weight"});
  check_error(with([](auto& j) { j["weight_map"]["transformer.new"] = j["weight_map"]["transformer.wpe.weight"]; }),
              ExitCode::data, {"transformer.new"});
  check_error(with([](auto& j) { j.erase("weight_map"); }), ExitCode::data, {"weight_map"});
  for (const char* metadata : {R"({"total_size": 3})", "null"}) {  // as for transformers, the headers say the sizes
    auto changed = good;
    changed["metadata"] = test::json_in(metadata);
    std::ofstream(index) << json_text(changed);
    CHECK(import_hugging_face(folder / "s").ok());
  }
  const fs::path shard = folder / "s/model-00002-of-00003.safetensors";
  const std::string whole = text(shard), last = File::read(shard).tensors.back().name;
  fs::resize_file(shard, whole.size() - 4);
  const std::string cut = with([](auto&) {}).message;
  CHECK(cut.starts_with(shard.string() + ": '" + last + "': expected data_offsets [begin, end] in the file's "));
  CHECK(cut.find('\n') == std::string::npos);
  std::ofstream(shard, std::ios::binary) << whole;
  std::ofstream(index) << std::string(100000, '[');
  check_error(import_hugging_face(folder / "s").error(), ExitCode::data, {"nested brackets"});
  std::ofstream(index) << json_text(good);
  CHECK(import_hugging_face(folder / "s").ok());

  // A header that claims more than the file holds, and one of other text.
  for (const std::string& bytes : {std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10), std::string("short"),
                                   std::string("\2\0\0\0\0\0\0\0[]", 10)}) {
    std::ofstream(folder / "model.safetensors", std::ios::binary) << bytes;
    CHECK(import_hugging_face(folder / "").error().code == ExitCode::data);
  }
}

TEST_CASE("a file that is replaced during an import is refused") {
  const test::TemporaryFolder folder;
  HuggingFaceModel model = import_ok(fixture("gpt2"));
  REQUIRE(export_hugging_face(model.config.model, values_of(model.store), folder / "s", {.shard_bytes = 40000}).ok());
  const fs::path second = folder / "s/model-00002-of-00003.safetensors";
  auto opened = test::good(models::ImportedModel::open(folder / "s"));  // has read the headers
  fs::copy_file(fixture("gpt2") / "model.safetensors", second, fs::copy_options::overwrite_existing);
  std::vector<float> values(24);
  CHECK(opened->read("h.0.ln_1.weight", {0, 24}, values, 1).ok());
  check_error(opened->read("h.2.ln_1.weight", {0, 24}, values, 1).error(), ExitCode::data,
              {second.string(), "was replaced"});
}

TEST_CASE("an import reads each value once, expert by expert, and writes what it reads") {
  const auto [name, upcycle] = GENERATE(table<std::string, std::optional<Upcycle>>(
      {{"qwen3_moe", std::nullopt}, {"gpt2", Upcycle{.experts = 16}}, {"qwen3", Upcycle{.experts = 3}}}));
  const test::TemporaryFolder folder;
  HuggingFaceModel model = import_ok(fixture(name), upcycle);
  const run::RankShare weights = run::shares_of(model.store).front();
  std::map<std::string, std::int64_t> read;  // elements
  std::vector<std::uint64_t> done;
  const auto count = [&](const std::string& parameter, const FlatRange& elements, std::span<float> to,
                         std::int64_t step) {
    read[parameter] += elements.size();
    if (run::holds_experts(parameter))
      CHECK(elements.size() * model.store[parameter].type.shape[0] == model.store[parameter].type.shape.elements());
    return model.imported.read(parameter, elements, to, step);
  };
  const auto watch = [&](std::int64_t bytes, std::int64_t of) {
    CHECK(std::uint64_t(of) == weights.bytes);
    done.push_back(std::uint64_t(bytes));
  };
  REQUIRE(run::save_model(folder / "run", model.config, weights, count, {}, watch).ok());
  for (const auto& [parameter, tensor] : model.store.all()) CHECK(read[parameter] == tensor.type.shape.elements());
  CHECK(done.size() == weights.sources.size());
  CHECK(std::adjacent_find(done.begin(), done.end(), std::greater_equal()) == done.end());
  CHECK(done.back() == weights.bytes);

  const auto saved = test::good(checkpoint::Checkpoint::open(folder / "run/checkpoints/step-000000"));
  runtime::TensorStore again = models::reserve_whole_store(model.config.model);
  REQUIRE(run::load_parameters(*saved, again).ok());
  for (const auto& [parameter, tensor] : model.store.all())
    CHECK(std::ranges::equal(again[parameter].memory.span<const float>(), tensor.memory.span<const float>()));
}

TEST_CASE("a model is written in blocks of 4 MB at most") {
  const test::TemporaryFolder folder;
  config::Config config = import_ok(fixture("gpt2")).config;
  config.model.n_layer = 1, config.model.n_embd = 256, config.model.n_head = 4, config.model.vocab_size = 10'000;
  const runtime::TensorStore store = models::reserve_whole_store(config.model);
  std::vector<FlatRange> ranges;
  const auto read = [&](const std::string& parameter, const FlatRange& elements, std::span<float> to, std::int64_t) {
    if (parameter == "wte.weight") ranges.push_back(elements);
    for (std::int64_t i = 0; i < elements.size(); ++i) to[std::size_t(i)] = float(elements.begin + i);
    return Status();
  };
  REQUIRE(run::save_model(folder / "run", config, run::shares_of(store).front(), read, {}).ok());
  const std::int64_t all = store["wte.weight"].type.shape.elements(), most = 1 << 20;
  CHECK(ranges == std::vector<FlatRange>{{0, most}, {most, 2 * most}, {2 * most, all}});
  const auto saved = test::good(checkpoint::Checkpoint::open(folder / "run/checkpoints/step-000000"));
  std::vector<float> values(static_cast<std::size_t>(all));
  REQUIRE(run::ParameterReader(*saved).read("wte.weight", {0, all}, values).ok());
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i] != float(i)) FAIL(i << ": " << values[i]);
}

TEST_CASE("any elements of an upcycled model are those that it has as a whole") {
  const HuggingFaceModel model = import_ok(fixture("gpt2"), Upcycle{.experts = 3, .noise = 0.1, .seed = 7});
  auto again = test::good(models::ImportedModel::open(fixture("gpt2"), Upcycle{.experts = 3, .noise = 0.1, .seed = 7}));
  for (const char* parameter : {"h.0.moe.gate.weight", "h.2.moe.experts.c_fc.weight", "h.1.mlp.c_fc.weight"}) {
    const auto all = model.store[parameter].memory.span<const float>();
    const std::int64_t each = std::ssize(all) / (run::holds_experts(parameter) ? 3 : 1), last = std::ssize(all);
    for (const FlatRange& range : {FlatRange{5, 6}, {7, 70}, {last - each, last}, {last - 31, last}}) {
      std::vector<float> values(std::size_t(range.size()));
      REQUIRE(again->read(parameter, range, values, 1).ok());
      CHECK(std::ranges::equal(values, all.subspan(std::size_t(range.begin), values.size())));
    }
  }
}

TEST_CASE("files of a killed command beside a new folder are removed, and nothing else") {
  const test::TemporaryFolder folder;
  const std::string here = "." + host_name() + "-", free_id = "2147483647";  // no process has that number
  const std::vector<std::string> stay = {"run" + here + std::to_string(::getppid()) + "-0.tmp",  // is being filled
                                         "run" + here + "12x-0.tmp",
                                         "run" + here + free_id + "-x.tmp",
                                         "run" + here + free_id + ".tmp",
                                         "run" + here + "-0.tmp",
                                         "run.tmp",
                                         "run.of-another-host-" + free_id + "-0.tmp",
                                         "runs" + here + free_id + "-0.tmp",
                                         "run" + here + free_id + "-0"};
  for (const std::string& name : stay) std::filesystem::create_directories(folder / name);
  std::filesystem::create_directories(folder / ("run" + here + free_id + "-0.tmp/checkpoints"));
  auto made = test::good(run::NewFolder::create(folder / "run"));
  CHECK(made->commit().ok());
  auto names = folder.names();
  std::sort(names.begin(), names.end());
  std::vector<std::string> expected = stay;
  expected.push_back("run");
  std::sort(expected.begin(), expected.end());
  CHECK(names == expected);
}

TEST_CASE("of two commands that make one folder at once the first wins, and the second names the folder") {
  const test::TemporaryFolder folder;
  const std::string out = folder / "out";
  auto first = test::good(run::NewFolder::create(out)), second = test::good(run::NewFolder::create(out));
  for (const auto& made : {&first, &second}) std::ofstream((*made)->path() / "file") << (made == &first ? "1" : "2");
  CHECK(first->commit().ok());
  const Error error = second->commit().error();
  CHECK(error.code == ExitCode::config);
  CHECK(error.message == out + ": expected no such folder yet, or an empty one, found files in it");
  CHECK(text(out + "/file") == "1");
}

TEST_CASE("the folder that one stands in and a link to an empty folder are replaced") {
  namespace fs = std::filesystem;
  const test::TemporaryFolder folder;
  const fs::path before = fs::current_path();
  for (const bool stands : {false, true}) {
    fs::create_directories(folder / "disk/run");
    fs::create_directory_symlink("disk/run", folder / "link");
    if (stands) fs::current_path(folder / "disk/run");
    const fs::path out = stands ? "." : folder / "link";
    auto made = test::good(run::NewFolder::create(out));
    CHECK(made->path().parent_path() == fs::canonical(folder / "disk"));
    std::ofstream(made->path() / "file") << "whole";
    CHECK(made->commit().ok());
    fs::current_path(before);
    CHECK(fs::exists(folder / "disk/run/file"));
    CHECK(fs::is_symlink(folder / "link"));
    fs::remove(folder / "link");
    fs::remove_all(folder / "disk");
  }
}

TEST_CASE("an empty mount point is refused before any work") {
  const test::TemporaryFolder folder;
  const std::string place = folder / "disk";
  std::filesystem::create_directory(place);
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t mounter = ::fork();
  if (mounter == 0) {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 || ::mount("none", place.c_str(), "tmpfs", 0, "") != 0) ::_exit(2);
    const Status checked = run::check_new_folder(place, 0);
    const std::string said = checked.ok() ? "" : checked.error().message;
    ::_exit(::write(ends[1], said.data(), said.size()) == ssize_t(said.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  int status = 0;
  REQUIRE(::waitpid(mounter, &status, 0) == mounter);
  char said[1000];
  const ssize_t size = ::read(ends[0], said, sizeof(said));
  ::close(ends[0]);
  if (WEXITSTATUS(status) == 2) return;  // nothing may be mounted here
  CHECK(status == 0);
  REQUIRE(size >= 0);
  CHECK(std::string_view(said, std::size_t(size)) ==
        place + ": expected a folder that a rename can replace, such as a new one in this one, found a mount point");
}

TEST_CASE("an unusable folder is refused before any work") {
  const test::TemporaryFolder folder;
  CHECK(run::check_new_folder(folder / "deep/below/run", 1).ok());
  CHECK(folder.names().empty());
  const Error vast =
      test::refused(run::check_new_folder(folder / "deep/run", std::numeric_limits<std::int64_t>::max()));
  CHECK(vast.code == ExitCode::data);
  CHECK(vast.message.starts_with((folder / "deep/run") + ": expected 9223372036855 MB free on its disk, found "));
  folder.write("file", "");
  const Error there = test::refused(run::check_new_folder(folder / ".", 0));
  CHECK(there.code == ExitCode::config);
  const Error below = test::refused(run::check_new_folder(folder / "file/run", 0));
  CHECK(below.message.find("expected a folder that can be written to") != std::string::npos);
}

}  // namespace lancet
