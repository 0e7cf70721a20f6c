#include "files.h"

#include <fmt/format.h>

#include <algorithm>

#include "lancet/base/files.h"
#include "lancet/base/json.h"
#include "lancet/base/shown.h"

namespace lancet::models {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view dense_type = "gpt2", moe_type = "gpt2_moe";

// Fields that have the same name in both configs. Those of `needed` are required.
constexpr const char* needed[] = {"n_layer", "n_head", "n_embd", "n_positions", "vocab_size"};
constexpr const char* shared[] = {"n_inner", "layer_norm_epsilon", "initializer_range"};
constexpr const char* of_experts[] = {"moe_layer_freq",  "num_local_experts",    "num_experts_per_tok",  "router",
                                      "capacity_factor", "router_aux_loss_coef", "router_aux_loss_scope"};
// These are written, and may be missing where they are read.
constexpr const char* optional_of_experts[] = {
    "norm_topk_prob",          "moe_intermediate_size", "n_shared_experts",     "first_k_dense_replace",
    "router_second_expert",    "router_skipped_slots",  "router_aux_loss_form", "router_jitter_noise",
    "router_z_loss_coef",      "router_groups",         "router_topk_groups",   "routed_scaling_factor",
    "router_bias_update_rate", "router_group_size"};

// Fields that would make another model of the same tensors, with the only value that is supported, which is also the
// default of a missing field.
struct Fixed {
  const char* name;
  const char* value;            // as JSON
  const char* synonyms = "[]";  // other values of the same meaning
};
constexpr Fixed fixed[] = {{"activation_function", "\"gelu_new\"",
                            R"(["gelu_pytorch_tanh", "gelu_fast", "gelu_accurate", "gelu_python_tanh"])"},
                           {"scale_attn_weights", "true"},
                           {"scale_attn_by_inverse_layer_idx", "false"},
                           {"add_cross_attention", "false"},
                           {"tie_word_embeddings", "true", "[false]"}};  // check_head() compares the two

Error wrong(const std::filesystem::path& file, std::string_view field, std::string_view expected,
            const std::string& found) {
  return config_error(fmt::format("{}: {}: expected {}, found {}", file.string(), field, expected, found));
}

Result<json> read_json(const std::filesystem::path& file) {
  LANCET_ASSIGN(const std::string text, read_file(file, "a Hugging Face model's config.json"));
  LANCET_ASSIGN(json parsed, parse_json(text, file.string(), ExitCode::config));
  if (!parsed.is_object())
    return config_error(fmt::format("{}: expected a JSON object, found other text", file.string()));
  return parsed;
}

using checkpoint::SafetensorsFile;

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

using Shards = std::map<std::string, std::set<std::string>>;  // file name -> tensors

Result<Shards> read_index(const std::filesystem::path& path) {
  LANCET_ASSIGN(const std::string text, read_file(path, "an index of shards"));
  LANCET_ASSIGN(const json index, parse_json(text, path.string(), ExitCode::data));
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object() ||
      index["weight_map"].empty())
    return data_error(
        fmt::format("{}: expected a JSON object with a weight_map of tensors, found none", path.string()));
  Shards shards;
  for (const auto& [name, file] : index["weight_map"].items()) {
    if (!file.is_string() || !is_plain_name(file.get<std::string>()))
      return data_error(fmt::format("{}: {}: expected the name of a file in this folder, found {}", path.string(),
                                    shown(name), shown(file)));
    shards[file.get<std::string>()].insert(name);
  }
  return shards;
}

}  // namespace

std::string config_text(const config::Model& model, const HuggingFaceExport& options) {
  const bool moe = model.has_moe();
  config::Config config;
  config.model = model;
  const json ours = json_of(config::to_json(config))["model"];
  ordered_json text;
  text["architectures"] = {moe ? "GPT2MoELMHeadModel" : "GPT2LMHeadModel"};
  text["model_type"] = moe ? moe_type : dense_type;
  for (const char* name : needed) text[name] = ours[name];
  for (const char* name : shared) text[name] = ours[name];
  if (moe)
    for (const char* name : of_experts) text[name] = ours[name];
  if (moe)
    for (const char* name : optional_of_experts) text[name] = ours[name];
  for (const Fixed& field : fixed) text[field.name] = json_of(field.value);
  for (const char* name : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) text[name] = 0.0;
  text["bos_token_id"] = options.bounds.begin >= 0 ? json(options.bounds.begin) : json();
  text["eos_token_id"] = options.bounds.ends.size() == 1 ? json(options.bounds.ends.front())
                         : options.bounds.ends.empty()   ? json()
                                                         : json(options.bounds.ends);
  text["torch_dtype"] = options.dtype == DType::bf16 ? "bfloat16" : "float32";
  return json_text(text, {.indent = 2, .strict = true}) + "\n";
}

Result<config::Config> read_config(const std::filesystem::path& file) {
  LANCET_ASSIGN(const json text, read_json(file));
  const json type = text.value("model_type", json());
  const bool moe = type == moe_type;
  if (!moe && type != dense_type) return wrong(file, "model_type", "\"gpt2\" or \"gpt2_moe\"", shown(type));
  for (const Fixed& field : fixed)
    if (text.contains(field.name) && text[field.name] != json_of(field.value) &&
        std::ranges::none_of(json_of(field.synonyms), [&](const json& same) { return same == text[field.name]; }))
      return wrong(file, field.name, field.value, shown(text[field.name]));
  json model = json::object();
  for (const char* name : needed) {
    if (!text.contains(name)) return wrong(file, name, "a number", "no such field");
    model[name] = text[name];
  }
  for (const char* name : shared)
    if (text.contains(name)) model[name] = text[name];
  if (moe) {
    for (const char* name : of_experts) {
      if (!text.contains(name)) return wrong(file, name, "a value", "no such field");
      model[name] = text[name];
    }
    for (const char* name : optional_of_experts)
      if (text.contains(name)) model[name] = text[name];
    if (model["moe_layer_freq"] == 0)
      return wrong(file, "moe_layer_freq", fmt::format("1 or more in a {}", moe_type), "0: no layer of experts");
  } else {
    model["moe_layer_freq"] = 0;
  }
  const json whole{{"model", model}, {"train", {{"micro_batch_size", 1}}}};
  LANCET_ASSIGN(config::Config config, config::parse(json_text(whole), file.string()));
  config.train.micro_batch_size = config.model.router_group_size.value_or(1);  // a multiple of it
  if (const Status status = config::check(config, 1); !status.ok())
    return config_error(fmt::format("{}: {}", file.string(), status.error().message));
  return config;
}

Result<bool> has_tied_head(const std::filesystem::path& file) {
  LANCET_ASSIGN(const json text, read_json(file));
  return text.value("tie_word_embeddings", json(true)) == true;
}

Result<TensorFiles> TensorFiles::open(const std::filesystem::path& folder) {
  TensorFiles files;
  std::error_code ignored;
  const auto single = folder / single_file, index = folder / index_file;
  const bool has_single = std::filesystem::exists(single, ignored), has_index = std::filesystem::exists(index, ignored);
  if (has_single == has_index)
    return data_error(fmt::format("{}: expected {} or {}, found {}", folder.string(), single_file, index_file,
                                  has_single ? "both" : "neither"));
  files.origin_ = has_single ? single : index;
  LANCET_TRY(has_single ? files.add(single, nullptr) : files.open_shards(folder));
  return files;
}

Status TensorFiles::open_shards(const std::filesystem::path& folder) {
  LANCET_ASSIGN(const Shards shards, read_index(origin_));
  for (const auto& [name, listed] : shards) LANCET_TRY(add(folder / name, &listed));
  return {};
}

Status TensorFiles::add(const std::filesystem::path& path, const std::set<std::string>* listed) {
  LANCET_ASSIGN(SafetensorsFile opened, SafetensorsFile::open(path));
  opened.close();
  const SafetensorsFile& file = *files_.emplace_back(std::make_unique<SafetensorsFile>(std::move(opened)));
  std::size_t found = 0;
  for (const checkpoint::TensorInfo& info : file.tensors()) {
    if (listed && !listed->count(info.name))
      return data_error(fmt::format("{}: expected only the tensors that {} lists for it, found {}",
                                    file.path().string(), origin_.filename().string(), shown(info.name)));
    ++found;
    const std::string name = info.name.starts_with(prefix) ? info.name.substr(prefix.size()) : info.name;
    if (!tensors_.emplace(name, FoundTensor{&file, &info}).second)
      return data_error(fmt::format("{}: expected {} once, found it twice", file.path().string(), shown(name)));
  }
  if (listed && found < listed->size())
    for (const std::string& name : *listed)
      if (!file.find(name))
        return data_error(fmt::format("{}: expected {}, which {} says is here, found no such tensor",
                                      file.path().string(), shown(name), origin_.filename().string()));
  return {};
}

Status TensorFiles::read(const FoundTensor& found, std::span<std::byte> bytes) {
  const SafetensorsFile& known = *found.file;
  if (!open_ || open_->path() != known.path()) {
    open_.reset();
    LANCET_ASSIGN(SafetensorsFile again, SafetensorsFile::open(known.path()));
    if (again.header_hash() != known.header_hash())
      return data_error(fmt::format("{}: expected the tensors that it had at first, found that the file was replaced",
                                    known.path().string()));
    open_ = std::move(again);
  }
  return open_->read(*found.info, 0, bytes);
}

}  // namespace lancet::models
