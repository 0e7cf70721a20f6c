#include "lancet/config/hugging_face.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "lancet/base/files.h"
#include "lancet/base/shown.h"

namespace lancet::config {
namespace {

using enum FilePart;

constexpr FileTensor gpt2_tensors[] = {
    {"wte.weight", "transformer.wte.weight"},
    {"wpe.weight", "transformer.wpe.weight"},
    {"h.N.ln_1.weight", "transformer.h.N.ln_1.weight"},
    {"h.N.ln_1.bias", "transformer.h.N.ln_1.bias"},
    {"h.N.attn.c_attn.weight", "transformer.h.N.attn.c_attn.weight", transposed},
    {"h.N.attn.c_attn.bias", "transformer.h.N.attn.c_attn.bias"},
    {"h.N.attn.c_proj.weight", "transformer.h.N.attn.c_proj.weight", transposed},
    {"h.N.attn.c_proj.bias", "transformer.h.N.attn.c_proj.bias"},
    {"h.N.ln_2.weight", "transformer.h.N.ln_2.weight"},
    {"h.N.ln_2.bias", "transformer.h.N.ln_2.bias"},
    {"h.N.mlp.c_fc.weight", "transformer.h.N.mlp.c_fc.weight", transposed},
    {"h.N.mlp.c_fc.bias", "transformer.h.N.mlp.c_fc.bias"},
    {"h.N.mlp.c_proj.weight", "transformer.h.N.mlp.c_proj.weight", transposed},
    {"h.N.mlp.c_proj.bias", "transformer.h.N.mlp.c_proj.bias"},
    {"h.N.moe.gate.weight", "transformer.h.N.moe.gate.weight"},
    {"h.N.moe.gate.bias", "transformer.h.N.moe.gate.bias"},
    {"h.N.moe.experts.c_fc.weight", "transformer.h.N.moe.experts.E.c_fc.weight", transposed},
    {"h.N.moe.experts.c_fc.bias", "transformer.h.N.moe.experts.E.c_fc.bias"},
    {"h.N.moe.experts.c_proj.weight", "transformer.h.N.moe.experts.E.c_proj.weight", transposed},
    {"h.N.moe.experts.c_proj.bias", "transformer.h.N.moe.experts.E.c_proj.bias"},
    {"h.N.moe.shared_experts.c_fc.weight", "transformer.h.N.moe.shared_experts.c_fc.weight", transposed},
    {"h.N.moe.shared_experts.c_fc.bias", "transformer.h.N.moe.shared_experts.c_fc.bias"},
    {"h.N.moe.shared_experts.c_proj.weight", "transformer.h.N.moe.shared_experts.c_proj.weight", transposed},
    {"h.N.moe.shared_experts.c_proj.bias", "transformer.h.N.moe.shared_experts.c_proj.bias"},
    {"ln_f.weight", "transformer.ln_f.weight"},
    {"ln_f.bias", "transformer.ln_f.bias"},
};

constexpr FileTensor llama_tensors[] = {
    {"wte.weight", "model.embed_tokens.weight"},
    {"h.N.ln_1.weight", "model.layers.N.input_layernorm.weight"},
    {"h.N.attn.c_attn.weight", "model.layers.N.self_attn.q_proj.weight", query},
    {"h.N.attn.c_attn.weight", "model.layers.N.self_attn.k_proj.weight", key},
    {"h.N.attn.c_attn.weight", "model.layers.N.self_attn.v_proj.weight", value},
    {"h.N.attn.c_proj.weight", "model.layers.N.self_attn.o_proj.weight"},
    {"h.N.attn.q_norm.weight", "model.layers.N.self_attn.q_norm.weight"},
    {"h.N.attn.k_norm.weight", "model.layers.N.self_attn.k_norm.weight"},
    {"h.N.ln_2.weight", "model.layers.N.post_attention_layernorm.weight"},
    {"h.N.mlp.c_fc.weight", "model.layers.N.mlp.gate_proj.weight", gate},
    {"h.N.mlp.c_fc.weight", "model.layers.N.mlp.up_proj.weight", up},
    {"h.N.mlp.c_proj.weight", "model.layers.N.mlp.down_proj.weight"},
    {"ln_f.weight", "model.norm.weight"},
    {"lm_head.weight", "lm_head.weight"},
};

constexpr FileTensor qwen_experts[] = {
    {"h.N.moe.gate.weight", "model.layers.N.mlp.gate.weight"},
    {"h.N.moe.experts.c_fc.weight", "model.layers.N.mlp.experts.E.gate_proj.weight", gate},
    {"h.N.moe.experts.c_fc.weight", "model.layers.N.mlp.experts.E.up_proj.weight", up},
    {"h.N.moe.experts.c_proj.weight", "model.layers.N.mlp.experts.E.down_proj.weight"},
    {"h.N.moe.experts.c_fc.weight", "model.layers.N.mlp.experts.gate_up_proj", gate_up, 1},
    {"h.N.moe.experts.c_proj.weight", "model.layers.N.mlp.experts.down_proj", whole, 1},
};

constexpr FileTensor mixtral_experts[] = {
    {"h.N.moe.gate.weight", "model.layers.N.block_sparse_moe.gate.weight"},
    {"h.N.moe.experts.c_fc.weight", "model.layers.N.block_sparse_moe.experts.E.w1.weight", gate},
    {"h.N.moe.experts.c_fc.weight", "model.layers.N.block_sparse_moe.experts.E.w3.weight", up},
    {"h.N.moe.experts.c_proj.weight", "model.layers.N.block_sparse_moe.experts.E.w2.weight"},
    {"h.N.moe.gate.weight", "model.layers.N.mlp.gate.weight", whole, 1},
    {"h.N.moe.experts.c_fc.weight", "model.layers.N.mlp.experts.gate_up_proj", gate_up, 1},
    {"h.N.moe.experts.c_proj.weight", "model.layers.N.mlp.experts.down_proj", whole, 1},
};

constexpr FileField gpt2_fields[] = {{"n_layer", true},      {"n_head", true},     {"n_embd", true},
                                     {"n_positions", true},  {"vocab_size", true}, {"n_inner"},
                                     {"layer_norm_epsilon"}, {"initializer_range"}};
constexpr FileField gpt2_expert_fields[] = {{"moe_layer_freq", true},
                                            {"num_local_experts", true},
                                            {"num_experts_per_tok", true},
                                            {"router", true},
                                            {"capacity_factor", true},
                                            {"router_aux_loss_coef", true},
                                            {"router_aux_loss_scope", true},
                                            {"norm_topk_prob"},
                                            {"moe_intermediate_size"},
                                            {"n_shared_experts"},
                                            {"first_k_dense_replace"},
                                            {"router_second_expert"},
                                            {"router_skipped_slots"},
                                            {"router_aux_loss_form"},
                                            {"router_jitter_noise"},
                                            {"router_z_loss_coef"},
                                            {"router_groups"},
                                            {"router_topk_groups"},
                                            {"routed_scaling_factor"},
                                            {"router_bias_update_rate"},
                                            {"router_group_size"}};
constexpr FixedField gpt2_fixed[] = {
    {"activation_function", "\"gelu_new\"",
     R"(["gelu_pytorch_tanh", "gelu_fast", "gelu_accurate", "gelu_python_tanh"])"},
    {"scale_attn_weights", "true"},
    {"scale_attn_by_inverse_layer_idx", "false"},
    {"add_cross_attention", "false"},
    {"tie_word_embeddings", "true", "[false]"},  // HuggingFaceFolder::check_head() compares the two
    {"attn_pdrop", "0.0", "[]", true},
    {"embd_pdrop", "0.0", "[]", true},
    {"resid_pdrop", "0.0", "[]", true}};
constexpr std::string_view gpt2_unused[] = {
    "n_ctx",        "reorder_and_upcast_attn", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
    "summary_type", "summary_use_proj"};

constexpr FileField llama_fields[] = {{"vocab_size", true},
                                      {"hidden_size", true},
                                      {"intermediate_size", true},
                                      {"num_hidden_layers", true},
                                      {"num_attention_heads", true},
                                      {"num_key_value_heads"},
                                      {"head_dim"},
                                      {"max_position_embeddings", true},
                                      {"rms_norm_eps"},
                                      {"rope_theta"},
                                      {"tie_word_embeddings"},
                                      {"initializer_range"}};
constexpr FileField mixtral_fields[] = {
    {"num_local_experts", true, "num_experts"}, {"num_experts_per_tok", true}, {"router_aux_loss_coef"}};
constexpr FileField qwen_fields[] = {{"num_experts", true, "num_local_experts"},
                                     {"num_experts_per_tok", true},
                                     {"moe_intermediate_size", true},
                                     {"decoder_sparse_step"},
                                     {"norm_topk_prob"},
                                     {"router_aux_loss_coef"}};

constexpr FixedField rotary_fixed[] = {{"hidden_act", "\"silu\""},
                                       {"attention_bias", "false"},
                                       {"attention_dropout", "0.0", "[]", true},
                                       {"rope_scaling", "null", R"([{"rope_type": "default"}, {"type": "default"}])"}};
constexpr FixedField llama_fixed[] = {{"mlp_bias", "false"}};
constexpr FixedField mixtral_fixed[] = {{"sliding_window", "null"}, {"router_jitter_noise", "0.0"}};
constexpr FixedField qwen3_fixed[] = {{"use_sliding_window", "false"}};
constexpr FixedField qwen3_moe_fixed[] = {{"use_sliding_window", "false"}, {"mlp_only_layers", "[]"}};
constexpr std::string_view rotary_unused[] = {"output_router_logits", "pretraining_tp", "sliding_window",
                                              "max_window_layers", "layer_types"};

// Of transformers itself, or of training and generation there.
constexpr std::string_view unused_by_all[] = {"_name_or_path",
                                              "architectures",
                                              "auto_map",
                                              "bos_token_id",
                                              "chunk_size_feed_forward",
                                              "dtype",
                                              "eos_token_id",
                                              "gradient_checkpointing",
                                              "id2label",
                                              "is_decoder",
                                              "is_encoder_decoder",
                                              "label2id",
                                              "output_attentions",
                                              "output_hidden_states",
                                              "pad_token_id",
                                              "problem_type",
                                              "return_dict",
                                              "task_specific_params",
                                              "tokenizer_class",
                                              "torch_dtype",
                                              "transformers_version",
                                              "use_cache"};

constexpr std::string_view masks[] = {".attn.bias", ".attn.masked_bias"}, angles[] = {".rotary_emb.inv_freq"};

constexpr FileFormat gpt2_format{.architecture = "GPT2LMHeadModel",
                                 .prefix = "transformer.",
                                 .tensors = gpt2_tensors,
                                 .buffers = masks,
                                 .fields = gpt2_fields,
                                 .expert_fields = gpt2_expert_fields,
                                 .fixed = gpt2_fixed,
                                 .unused = gpt2_unused,
                                 .moe_type = "gpt2_moe",
                                 .moe_architecture = "GPT2MoELMHeadModel"};
constexpr FileFormat llama_format{.architecture = "LlamaForCausalLM",
                                  .prefix = "model.",
                                  .tensors = llama_tensors,
                                  .buffers = angles,
                                  .fields = llama_fields,
                                  .fixed = rotary_fixed,
                                  .own_fixed = llama_fixed,
                                  .unused = rotary_unused};
constexpr FileFormat mixtral_format{.architecture = "MixtralForCausalLM",
                                    .prefix = "model.",
                                    .tensors = llama_tensors,
                                    .expert_tensors = mixtral_experts,
                                    .buffers = angles,
                                    .fields = llama_fields,
                                    .expert_fields = mixtral_fields,
                                    .fixed = rotary_fixed,
                                    .own_fixed = mixtral_fixed,
                                    .unused = rotary_unused};
constexpr FileFormat qwen3_format{.architecture = "Qwen3ForCausalLM",
                                  .prefix = "model.",
                                  .tensors = llama_tensors,
                                  .buffers = angles,
                                  .fields = llama_fields,
                                  .fixed = rotary_fixed,
                                  .own_fixed = qwen3_fixed,
                                  .unused = rotary_unused};
constexpr FileFormat qwen3_moe_format{.architecture = "Qwen3MoeForCausalLM",
                                      .prefix = "model.",
                                      .tensors = llama_tensors,
                                      .expert_tensors = qwen_experts,
                                      .buffers = angles,
                                      .fields = llama_fields,
                                      .expert_fields = qwen_fields,
                                      .fixed = rotary_fixed,
                                      .own_fixed = qwen3_moe_fixed,
                                      .unused = rotary_unused};

}  // namespace

const FileFormat& file_format(ModelType type) {
  switch (type) {
    case ModelType::llama:
      return llama_format;
    case ModelType::mixtral:
      return mixtral_format;
    case ModelType::qwen3:
      return qwen3_format;
    case ModelType::qwen3_moe:
      return qwen3_moe_format;
    case ModelType::gpt2:
      break;
  }
  return gpt2_format;
}

// Reading config.json: each field must be one of ours, or have its one value, or change nothing; anything else could
// make it another model. What is ours then passes the parser of run configs, with its types and ranges.
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

Error wrong(const std::filesystem::path& file, std::string_view field, std::string_view expected,
            std::string_view found) {
  return data_error(fmt::format("{}: {}: expected {}, found {}", file.string(), field, expected, found));
}

// rope_parameters of transformers 5: rope_theta, and the rest is rope_scaling, unless it scales nothing.
Status split_rope(ordered_json& text, const std::filesystem::path& file) {
  if (!text.contains("rope_parameters")) return {};
  ordered_json rest = text["rope_parameters"];
  if (!rest.is_object()) return wrong(file, "rope_parameters", "an object", shown(json(rest)));
  if (rest.contains("rope_theta")) text["rope_theta"] = rest["rope_theta"];
  rest.erase("rope_theta");
  if (rest.value("rope_type", "default") == "default") rest.erase("rope_type");
  text["rope_scaling"] = rest.empty() ? ordered_json() : rest;
  text.erase("rope_parameters");
  return {};
}

// The family that has a model_type of config.json, and whether that is its mixtures' own; none: no family has it.
std::optional<std::pair<ModelType, bool>> family_of(const json& type) {
  for (std::size_t i = 0; i < words_of(ModelType()).size(); ++i) {
    if (type == words_of(ModelType())[i]) return {{ModelType(i), false}};
    if (const auto moe = file_format(ModelType(i)).moe_type; !moe.empty() && type == moe) return {{ModelType(i), true}};
  }
  return {};
}

class ConfigReader {
 public:
  ConfigReader(const std::filesystem::path& file, std::span<const std::string> accepted)
      : file_(file), accepted_(accepted) {}

  Result<Config> operator()() {
    LANCET_ASSIGN(const ordered_json text, read_file_config(file_));
    const json type = text.value("model_type", json());
    const auto found = family_of(type);
    if (!found)
      return wrong(file_, "model_type", fmt::format("one of \"{}\"", fmt::join(words_of(ModelType()), "\", \"")),
                   shown(type));
    format_ = &file_format(found->first);
    model_["model_type"] = name(found->first);
    has_experts_ = format_->moe_type.empty() || found->second;
    if (!has_experts_) model_["moe_layer_freq"] = 0;
    for (const auto& [key, value] : text.items())
      if (key != "model_type") LANCET_TRY(take(key, value));
    LANCET_TRY(check_needed());
    const json whole{{"model", model_}, {"train", {{"micro_batch_size", 1}}}};
    auto config = parse(json_text(whole), file_.string());
    if (!config.ok()) return data_error(config.error().message);
    config->train.micro_batch_size = config->model.router_group_size.value_or(1);  // a multiple of it
    if (const Status status = check(*config, 1); !status.ok())
      return data_error(fmt::format("{}: {}", file_.string(), status.error().message));
    if (found->second && !config->model.has_moe())
      return wrong(file_, "moe_layer_freq", fmt::format("1 or more in a {}", format_->moe_type),
                   "0: no layer of experts");
    return config;
  }

 private:
  template <class F>
  void for_each_field(const F& f) const {
    for (const FileField& field : format_->fields) f(field);
    if (!has_experts_) return;
    for (const FileField& field : format_->expert_fields) f(field);
  }

  Status take(const std::string& key, const json& value) {
    const FixedField* fixed = nullptr;
    for (const auto& fields : {format_->fixed, format_->own_fixed})
      for (const FixedField& field : fields)
        if (field.name == key) fixed = &field;
    if (fixed) return check_fixed(*fixed, value);
    bool ours = false;
    for_each_field([&](const FileField& field) {
      if (key != field.name && key != field.other_name) return;
      ours = true;
      model_[field.name] = value;
    });
    const auto has = [&](auto names) { return std::ranges::find(names, key) != names.end(); };
    if (ours || has(format_->unused) || has(std::span(unused_by_all)) || has(accepted_)) return {};
    return wrong(file_, cut(key, 60), fmt::format("a field of {} that is known here", shown(model_["model_type"])),
                 fmt::format("another one; --accept-field {} passes it over", cut(key, 60)));
  }

  Status check_fixed(const FixedField& field, const json& value) const {
    const json one = json_of(field.value);
    if (field.any || value == one) return {};
    for (const json& same : json_of(field.synonyms))
      if (value == same) return {};
    return wrong(file_, field.name, field.value, shown(value));
  }

  Status check_needed() const {
    std::string_view missing;
    for_each_field([&](const FileField& field) {
      if (field.needed && missing.empty() && !model_.contains(field.name)) missing = field.name;
    });
    return missing.empty() ? Status() : wrong(file_, missing, "a value", "no such field");
  }

  const std::filesystem::path& file_;
  std::span<const std::string> accepted_;
  const FileFormat* format_ = nullptr;
  bool has_experts_ = false;
  json model_ = json::object();
};

}  // namespace

Result<ordered_json> read_file_config(const std::filesystem::path& file) {
  LANCET_ASSIGN(const std::string read, read_file(file, "a Hugging Face model's config.json"));
  LANCET_ASSIGN(ordered_json text, parse_json<ordered_json>(read, file.string(), ExitCode::data));
  if (!text.is_object()) return data_error(fmt::format("{}: expected a JSON object, found other text", file.string()));
  LANCET_TRY(split_rope(text, file));
  if (text.contains("dtype")) {
    text["torch_dtype"] = text["dtype"];
    text.erase("dtype");
  }
  return text;
}

Result<Config> read_hugging_face(const std::filesystem::path& file, std::span<const std::string> accepted) {
  return ConfigReader(file, accepted)();
}

}  // namespace lancet::config
