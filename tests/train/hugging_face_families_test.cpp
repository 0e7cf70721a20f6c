// Hugging Face's format: other layouts, exports and upcycling of the families with rotary positions.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sstream>

#include "temporary_folder.h"
#include "train/hugging_face_files.h"

using namespace lancet;
using namespace lancet::models;
using namespace lancet::test::hf;

namespace {

// The other layout of a folder: the experts of a layer stacked, gates before ups, and transformers 5's fields.
void stack_experts(File& file, const std::string& block, const std::string& stacked, const std::string& suffixes) {
  std::istringstream in(suffixes);
  std::string gate, up, down;
  in >> gate >> up >> down;
  const auto take = [&](const std::string& name) {
    std::erase_if(file.tensors, [&](const auto& tensor) { return tensor.name == name; });
    return file.bytes.at(name);
  };
  checkpoint::TensorInfo gate_up, downs;
  std::int64_t experts = 0;
  for (; file.bytes.contains(fmt::format("{}.experts.{}.{}", block, experts, gate)); ++experts) {
    const std::string of_expert = fmt::format("{}.experts.{}.", block, experts);
    gate_up = file[of_expert + gate], downs = file[of_expert + down];
    for (const auto& [name, to] : {std::pair(gate, "gate_up_proj"), {up, "gate_up_proj"}, {down, "down_proj"}}) {
      const auto bytes = take(of_expert + name);
      auto& all = file.bytes[stacked + ".experts." + to];
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
  }
  gate_up.name = stacked + ".experts.gate_up_proj", downs.name = stacked + ".experts.down_proj";
  gate_up.shape = {experts, 2 * gate_up.shape[0], gate_up.shape[1]};
  downs.shape = {experts, downs.shape[0], downs.shape[1]};
  file.tensors.push_back(gate_up);
  file.tensors.push_back(downs);
}

}  // namespace

TEST_CASE("stacked experts and transformers 5's fields are read, and exported with a tensor for each expert") {
  const std::string name = GENERATE("mixtral", "qwen3_moe", "dots1");
  const Changed changed(
      name,
      [&](File& file) {
        if (name != "mixtral") {
          for (const std::string block : {"model.layers.1.mlp", "model.layers.2.mlp"})
            if (file.bytes.contains(block + ".experts.0.up_proj.weight"))
              stack_experts(file, block, block, "gate_proj.weight up_proj.weight down_proj.weight");
          return;
        }
        for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
          const std::string block = layer + std::string("block_sparse_moe"), stacked = layer + std::string("mlp");
          stack_experts(file, block, stacked, "w1.weight w3.weight w2.weight");
          file.rename(block + ".gate.weight", stacked + ".gate.weight");
        }
      },
      [&](nlohmann::json& config) {
        config["rope_parameters"] = {{"rope_theta", config["rope_theta"]}, {"rope_type", "default"}};
        config["dtype"] = config["torch_dtype"];
        for (const char* old : {"rope_theta", "rope_scaling", "torch_dtype"}) config.erase(old);
        if (name == "mixtral") return;
        const char* const experts = name == "dots1" ? "n_routed_experts" : "num_experts";
        config["num_local_experts"] = config[experts];
        config.erase(experts);
      });
  HuggingFaceModel model = import_ok(changed.folder / "");
  const HuggingFaceExport options{.source = changed.folder / "", .types = model.imported.folder().types()};
  REQUIRE(export_hugging_face(model.config.model, values_of(model.store), changed.folder / "out", options).ok());
  const File original = File::read(fixture(name) / "model.safetensors"),
             again = File::read(changed.folder / "out/model.safetensors");
  CHECK(original.tensors.size() == again.tensors.size());
  for (const auto& tensor : original.tensors) {
    INFO(tensor.name);
    REQUIRE(again.bytes.contains(tensor.name));
    CHECK(original.bytes.at(tensor.name) == again.bytes.at(tensor.name));
  }
  CHECK(test::json_in(text(changed.folder / "out/config.json")) == test::json_in(text(fixture(name) / "config.json")));
}

TEST_CASE("an export of a family has the config.json of its own, and a tied head beside the embedding comes again") {
  const test::TemporaryFolder folder;
  HuggingFaceModel model = import_ok(fixture("qwen3"));
  REQUIRE(export_hugging_face(model.config.model, values_of(model.store), folder / "s", {}).ok());
  const auto written = test::json_in(text(folder / "s/config.json"));
  CHECK(written["model_type"] == "qwen3");
  CHECK(written["architectures"] == test::json_in("[\"Qwen3ForCausalLM\"]"));
  CHECK(written["head_dim"] == 8);
  CHECK(import_ok(folder / "s").config.model == model.config.model);
  const auto with_head = [](std::byte change) {
    return [change](File& file) {
      file.tensors.push_back({"lm_head.weight", "F32", file["model.embed_tokens.weight"].shape});
      file.bytes["lm_head.weight"] = file.bytes["model.embed_tokens.weight"];
      file.bytes["lm_head.weight"].back() ^= change;
    };
  };
  const Changed tied("qwen3", with_head(std::byte(0)));
  model = import_ok(tied.folder / "");
  REQUIRE(export_hugging_face(model.config.model, values_of(model.store), folder / "t",
                              {.types = model.imported.folder().types()})
              .ok());
  CHECK(File::read(folder / "t/model.safetensors").bytes.contains("lm_head.weight"));
  check_error(Changed("qwen3", with_head(std::byte(1))).error(), ExitCode::data, {"lm_head.weight", "a tied head"});
}

TEST_CASE("a model whose router is not the one of its family's files is not exported") {
  const auto [name, expected, router] = GENERATE(table<std::string, std::string, config::Router>(
      {{"dots1", "sigmoid", config::Router::top_k}, {"olmoe", "top_k", config::Router::sigmoid}}));
  HuggingFaceModel model = import_ok(fixture(name));
  model.config.model.router = router;
  const test::TemporaryFolder folder;
  const Error error = test::refused(export_hugging_face(model.config.model, values_of(model.store), folder / "s", {}));
  CHECK(error.code == ExitCode::config);
  CHECK(error.message == fmt::format("model.router: expected \"{}\", as {} has it at Hugging Face, found \"{}\"",
                                     expected, name, config::name(router)));
}

TEST_CASE("an upcycled llama or qwen3 without noise computes what the dense model did") {
  const auto [name, made] = GENERATE(table<std::string, std::string>({{"llama", "mixtral"}, {"qwen3", "qwen3_moe"}}));
  HuggingFaceModel model = import_ok(fixture(name), Upcycle{.experts = 4, .noise = 0});
  CHECK(model.config.model.family().name == made);
  CHECK(model.config.model.moe_layers() == 2);
  CHECK(model.config.model.router_aux_loss_coef == 0.001);  // the mixture's default
  double scale = 0;
  const double most = difference(model, model.store, File::read(fixture(name) / "logits.safetensors"), scale);
  INFO(name << ": largest difference " << most << " of logits up to " << scale);
  CHECK(most < 1e-5 * scale);
  const test::TemporaryFolder folder;
  REQUIRE(export_hugging_face(model.config.model, values_of(model.store), folder / "s", {}).ok());
  const HuggingFaceModel again = import_ok(folder / "s");
  CHECK(again.config.model.resolved() == model.config.model.resolved());
  CHECK(again.config.model.num_experts_per_tok == 2);
}

TEST_CASE("a model with a field that the family of its mixture lacks is not upcycled") {
  const Changed changed(
      "llama",
      [](File& file) {
        for (const checkpoint::TensorInfo& tensor : std::vector(file.tensors)) {
          if (tensor.name.find("self_attn.") == tensor.name.npos || !tensor.name.ends_with("_proj.weight")) continue;
          const std::string bias = tensor.name.substr(0, tensor.name.size() - 6) + "bias";
          file.tensors.push_back({bias, "F32", {tensor.shape[0]}});
          file.bytes[bias].resize(4 * std::size_t(tensor.shape[0]));
        }
      },
      [](nlohmann::json& config) { config["attention_bias"] = true; });
  CHECK(import_ok(changed.folder / "").config.model.attention_bias);
  const Error error = test::refused(import_hugging_face(changed.folder / "", Upcycle{.experts = 4}));
  CHECK(error.code == ExitCode::data);
  CHECK(error.message == (changed.folder / "config.json") +
                             ": attention_bias: expected false, since mixtral has no such field, found true");
}
