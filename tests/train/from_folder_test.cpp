// Runs that start from a folder of Hugging Face's format.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "good.h"
#include "lancet/base/files.h"
#include "lancet/base/json.h"
#include "lancet/config/config.h"
#include "lancet/run/run_folder.h"
#include "log_capture.h"
#include "temporary_folder.h"
#include "train/hugging_face_files.h"
#include "train/runs.h"

namespace lancet {
namespace {

using namespace lancet::test::hf;
using nlohmann::json;

json config_from(const std::string& hf, const std::string& run) {
  return {{"model", {{"from", hf}}},
          {"train", {{"steps", 1}, {"micro_batch_size", 2}, {"optimizer", "sgd"}, {"lr", 1e-30}, {"save_interval", 9}}},
          {"data", {{"synthetic", true}}},
          {"log", {{"run_dir", run}, {"peak_tflops", 1}}},
          {"threads", 1}};
}

config::Config parsed(const json& text) { return *test::good(config::parse(json_text(text), "c.json")); }

// The run's first checkpoint has the folder's weights.
void check_weights(const std::string& run, const std::string& hf) {
  const HuggingFaceModel model = import_ok(hf);
  runtime::TensorStore saved = models::reserve_whole_store(model.config.model);
  const auto opened = test::good(checkpoint::Checkpoint::open(run + "/checkpoints/step-000001"));
  REQUIRE(run::load_parameters(*opened, saved).ok());
  for (const auto& [parameter, tensor] : model.store.all()) {
    INFO(parameter);
    CHECK(std::ranges::equal(saved[parameter].memory.span<const float>(), tensor.memory.span<const float>()));
  }
}

}  // namespace

TEST_CASE("a folder's model and defaults for training it on are those of a config with model.from") {
  const config::Config config = parsed({{"model", {{"from", fixture("qwen3_moe")}, {"router_aux_loss_coef", 0.5}}}});
  const config::Model& model = config.model;
  CHECK(model.family().name == "qwen3_moe");
  CHECK(model.n_layer == 3);
  CHECK(model.head_dim == 8);
  CHECK(model.num_experts_per_tok == 3);
  CHECK(model.norm_topk_prob);
  CHECK_FALSE(model.capacity_factor);
  CHECK(model.router_aux_loss_coef == 0.5);
  CHECK(config.train.lr == 1e-5);
  CHECK(config.train.seq_len == 32);  // the model's
  CHECK_FALSE(parsed({{"model", {{"from", fixture("gpt2_moe")}}}}).model.capacity_factor);
  for (const char* shape : {"hidden_size", "router", "num_experts_per_tok", "model_type"}) {
    const json text{{"model", {{"from", fixture("qwen3_moe")}, {shape, 3}}}};
    check_error(config::parse(json_text(text), "c.json").error(), ExitCode::config,
                {std::string("c.json: model.") + shape + ": expected no such field beside model.from", "found 3"});
  }
  const json none{{"model", {{"from", "/no/folder"}}}};
  check_error(config::parse(json_text(none), "c.json").error(), ExitCode::data, {"/no/folder/config.json"});
}

TEST_CASE("ranks of any mesh start with a folder's weights, and a run with checkpoints needs the folder no more") {
  const auto [name, ranks, mesh, training] = GENERATE(table<std::string, int, std::string, std::string>({
      {"qwen3_moe", 4, R"({"tensor": 2, "expert": 2})", R"({"zero": 1, "dtype": "bf16"})"},
      {"mixtral", 2, R"({"stage": 2})", "{}"},
      {"llama", 2, R"({"tensor": 2})", R"({"zero": 1})"},
      {"gpt2_moe", 2, R"({"tensor": 2})", "{}"},
      {"olmoe", 2, R"({"tensor": 2})", "{}"},
      {"qwen2_moe", 4, R"({"tensor": 2})", R"({"zero": 1, "dtype": "bf16"})"},
      {"dots1", 4, R"({"tensor": 2, "expert": 2})", R"({"zero": 1})"},
  }));
  INFO(name << " " << mesh);
  const test::TemporaryFolder folder;
  const std::string hf = folder / "model", run = folder / "run";
  fs::copy(fixture(name), hf);
  json text = config_from(hf, run);
  text["mesh"] = test::json_in(mesh);
  text["train"].update(test::json_in(training));
  CHECK(test::train_run(parsed(text), ranks).message.empty());

  check_weights(run, hf);

  fs::remove_all(hf);
  text["train"]["steps"] = 2;
  const test::LogCapture log;
  CHECK(test::train_run(parsed(text), ranks).message.empty());
  CHECK(test::losses(run).size() == 2);
  CHECK(log.count("note: model.from " + hf + " was not needed: the run resumes") >= 1);
}

TEST_CASE("a run whose folder's field was accepted resumes without or with the option") {
  const test::TemporaryFolder folder;
  const std::string hf = folder / "model", run = folder / "run";
  fs::copy(fixture("llama"), hf);
  json config = test::json_in(read_file(hf + "/config.json", "a config").value());
  config["new_scale"] = 2;
  folder.write("model/config.json", json_text(config));
  json text = config_from(hf, run);
  const std::vector<std::string> accepted = {"new_scale"};
  CHECK(test::refused(config::parse(json_text(text), "c.json")).message.starts_with(hf + "/config.json: new_scale: "));
  const auto begun = config::parse(json_text(text), "c.json", {}, accepted);
  CHECK(test::train_run(*test::good(begun), 2, {.accepted = accepted}).message.empty());
  fs::remove_all(hf);
  for (int step = 2; step <= 3; ++step) {
    text["train"]["steps"] = step;
    const auto again = config::parse(json_text(text), "c.json", {}, step == 2 ? std::vector<std::string>() : accepted);
    CHECK(test::train_run(*test::good(again), 2).message.empty());
    CHECK(test::losses(run).size() == std::size_t(step));
  }
}

TEST_CASE("a folder's rope_scaling is the run's, under either key of its type") {
  const test::TemporaryFolder folder;
  const std::string hf = folder / "model";
  fs::copy(fixture("llama"), hf);
  json text = test::json_in(read_file(hf + "/config.json", "a config").value());
  const auto scaling_of = [&](const char* written) {
    text["rope_scaling"] = test::json_in(written);
    folder.write("model/config.json", json_text(text));
    return parsed({{"model", {{"from", hf}}}}).model.rope_scaling;
  };
  CHECK(!scaling_of(R"({"type": "default"})"));
  for (const char* key : {"type", "rope_type"}) {
    const auto scaling = scaling_of(fmt::format(R"({{"{}": "linear", "factor": 4}})", key).c_str());
    REQUIRE(scaling);
    CHECK(scaling->rope_type == config::RopeType::linear);
    CHECK(scaling->factor == 4);
  }
  const auto refuse = [&](const std::string& field, const std::string& message) {
    folder.write("model/config.json", json_text(text));
    const Error error = test::refused(config::parse(json_text(json{{"model", {{"from", hf}}}}), "test"));
    CHECK(error.code == ExitCode::data);
    CHECK(error.message == hf + "/config.json: " + field + message);
  };
  const std::string expected = R"(.rope_type: expected one of "linear", "yarn", "llama3", found )";
  text["rope_scaling"] = test::json_in(R"({"rope_type": "dynamic", "factor": 4})");
  refuse("rope_scaling", expected + "\"dynamic\"");
  text.erase("rope_scaling");
  for (const char* type : {"null", "7", "[]"}) {  // of transformers 5's field
    text["rope_parameters"] = {{"rope_theta", 10000}, {"rope_type", test::json_in(type)}, {"factor", 2}};
    refuse("rope_parameters",
           type == std::string("null") ? ".rope_type: expected a value, found none" : expected + type);
  }
}

TEST_CASE("rank 0 alone warns of a folder whose factor transformers 4 does not take") {
  const test::TemporaryFolder folder;
  const std::string hf = folder / "model";
  fs::copy(fixture("qwen3_moe_yarn"), hf);
  json config = test::json_in(read_file(hf + "/config.json", "a config").value());
  config["rope_scaling"]["original_max_position_embeddings"] = 16;
  folder.write("model/config.json", json_text(config));
  json text = config_from(hf, folder / "run");
  text["mesh"] = {{"data", 2}};
  const test::LogCapture log;
  CHECK(test::train_run(parsed(text), 2).message.empty());
  CHECK(log.count("warning: " + hf + "/config.json: rope_scaling: factor 4 is taken") == 1);
  import_ok(fixture("qwen3_moe_yarn"));
  CHECK(log.count("rope_scaling: factor") == 1);
}

TEST_CASE("the weights of a folder are taken by --init-from for a config of the same model alone") {
  const test::TemporaryFolder folder;
  const std::string hf = fixture("llama").string();
  config::Config config = parsed(config_from(hf, folder / "run"));
  config.model.from.clear();
  config.model.rope_theta = 500;
  const Error refused = test::train_run(config, 2, {.init_from = hf});
  CHECK(refused.message == "config: model.rope_theta: expected 10000, as in " + hf + ", found 500");
  config.model.rope_theta = 10000;
  CHECK(test::train_run(config, 2, {.init_from = hf}).message.empty());
  check_weights(folder / "run", hf);
}

TEST_CASE("weights of another family are refused with both families' names, of a folder and of a run") {
  const test::TemporaryFolder folder;
  config::Config config = parsed(config_from(fixture("qwen3").string(), folder / "run"));
  config.model.from.clear();
  const std::string hf = fixture("llama").string();
  const auto families = [](const std::string& where) {
    return "model.model_type: expected \"llama\", as in " + where + ", found \"qwen3\"";
  };
  CHECK(test::train_run(config, 2, {.init_from = hf}).message == "config: " + families(hf));
  const HuggingFaceModel other = import_ok(hf);
  REQUIRE(save(folder / "llama", other.config, other.store).ok());
  CHECK(test::train_run(config, 2, {.init_from = folder / "llama"}).message ==
        families(folder / "llama/checkpoints/step-000000"));
}

TEST_CASE("a run does not take its model's folder, and a mesh beside a folder is checked") {
  const test::TemporaryFolder folder;
  const std::string hf = folder / "model";
  fs::copy(fixture("llama"), hf);
  const std::string before = read_file(hf + "/config.json", "a config").value();
  check_error(test::train_run(parsed(config_from(hf, hf)), 1), ExitCode::config, {"log.run_dir", hf});
  CHECK(read_file(hf + "/config.json", "a config").value() == before);
  json text = config_from(hf, folder / "run");
  text["mesh"] = {{"tensor", 2}};
  check_error(test::train_run(parsed(text), 1), ExitCode::config, {"config: mesh: expected axes"});
  CHECK_FALSE(fs::exists(folder / "run"));
}

TEST_CASE("a folder that is damaged or of another shape is an error of one line, and nothing is written") {
  const test::TemporaryFolder folder;
  const std::string hf = folder / "model", run = folder / "run", weights = hf + "/model.safetensors";
  fs::copy(fixture("mixtral"), hf);
  const config::Config config = parsed(config_from(hf, run));
  const auto refused = [&](const std::vector<std::string>& said) {
    check_error(test::train_run(config, 2), ExitCode::data, said);
    CHECK_FALSE(fs::exists(run));
    fs::copy_file(fixture("mixtral") / "model.safetensors", weights, fs::copy_options::overwrite_existing);
  };
  fs::resize_file(weights, fs::file_size(weights) - 1);
  refused({weights, "in the file's"});
  const std::string experts = "model.layers.1.block_sparse_moe.experts.2.", up = experts + "w3.weight",
                    down = experts + "w2.weight";
  const auto change = [&](const std::function<void(File&)>& f) {
    File file = File::read(weights);
    f(file);
    file.write(weights);
  };
  change([&](File& file) { file[up].shape = {16, 20}; });
  refused({weights + ": " + up + ": expected [20,16] of F32, F16 or BF16, found BF16[16,20]"});
  change([&](File& file) { file.rename(up, up + "s"); });
  refused({weights + ": expected tensor " + up + " [20,16], found none of that name"});
  change([&](File& file) { file.bytes[down][1] = std::byte(0x7f), file.bytes[down][0] = std::byte(0x80); });
  refused({weights + ": " + down + ": expected finite numbers, found a non-finite one at element 0"});
  std::ofstream(hf + "/model.safetensors.index.json") << R"({"weight_map": {"a": "none.safetensors"}})";
  check_error(test::train_run(config, 2), ExitCode::data, {hf + ": expected model.safetensors or", "found both"});
  fs::remove(weights);
  check_error(test::train_run(config, 2), ExitCode::data, {hf + "/none.safetensors: expected a safetensors file"});
}

}  // namespace lancet
