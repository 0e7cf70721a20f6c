// Reading config.json: each field must be one of ours, or have its one value, or change nothing; anything else could
// make it another model. What is ours then passes the parser of run configs, with its types and ranges.
#include "lancet/config/hugging_face.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "fields.h"
#include "lancet/base/files.h"
#include "lancet/base/shown.h"

namespace lancet::config {
namespace {

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

using nlohmann::json;
using nlohmann::ordered_json;

Error wrong(const std::filesystem::path& file, std::string_view field, std::string_view expected,
            std::string_view found) {
  return data_error(fmt::format("{}: {}: expected {}, found {}", file.string(), field, expected, found));
}

// rope_scaling as a run config has it: without null members, and with rope_type for its older name `type`, which stays
// where rope_type is another one. Members whose value is the only one here are left out. Null: nothing is scaled.
json rope_of(const json& scaling) {
  if (!scaling.is_object()) return scaling;
  json rope = json::object();
  for (const auto& [name, value] : scaling.items())
    if (!value.is_null()) rope[name] = value;
  if (rope.contains("type")) rope.emplace("rope_type", rope["type"]);
  if (rope.contains("type") && rope["type"] == rope["rope_type"]) rope.erase("type");
  const auto leave_out = [&](const char* type, const char* member, const json& value) {
    if (rope.value("rope_type", json()) == type && rope.value(member, json()) == value) rope.erase(member);
  };
  leave_out("yarn", "truncate", true);
  leave_out("default", "factor", 1);
  return rope == json{{"rope_type", "default"}} ? json() : rope;
}

// rope_parameters of transformers 5: rope_theta, and the rest is rope_scaling, unless it scales nothing. Where a file
// has the older fields as well, they must say the same.
Status split_rope(ordered_json& text, const std::filesystem::path& file) {
  if (!text.contains("rope_parameters")) return {};
  ordered_json rest = text["rope_parameters"];
  text.erase("rope_parameters");
  if (rest.is_null()) return {};
  if (!rest.is_object()) return wrong(file, "rope_parameters", "an object", shown(json(rest)));
  const auto put = [&](const char* field, const ordered_json& value) -> Status {
    const json older = text.value(field, ordered_json());
    if (!older.is_null() && rope_of(older) != rope_of(value))
      return wrong(file, fmt::format("{} and rope_parameters", field), "the same in both",
                   fmt::format("{} and {}", shown(older), shown(json(value))));
    text[field] = value;
    return {};
  };
  if (rest.contains("rope_theta")) LANCET_TRY(put("rope_theta", rest["rope_theta"]));
  rest.erase("rope_theta");
  if (rest.empty() || rope_of(rest).is_null()) rest = nullptr;
  return put("rope_scaling", rest);
}

// With the names of transformers 4.
Status to_version_4(ordered_json& text, const std::filesystem::path& file) {
  LANCET_TRY(split_rope(text, file));
  if (text.contains("dtype")) {
    text["torch_dtype"] = text["dtype"];
    text.erase("dtype");
  }
  return {};
}

Result<ordered_json> read_text(const std::filesystem::path& file) {
  LANCET_ASSIGN(const std::string read, read_file(file, "a Hugging Face model's config.json"));
  LANCET_ASSIGN(ordered_json text, parse_json<ordered_json>(read, file.string(), ExitCode::data));
  if (!text.is_object()) return data_error(fmt::format("{}: expected a JSON object, found other text", file.string()));
  return text;
}

// The family that has a model_type of config.json, and whether that is its mixtures' own; null: no family has it.
std::pair<const Family*, bool> family_of(const json& type) {
  for (const Family* family : families_known()) {
    if (type == family->name) return {family, false};
    if (const std::string_view moe = family->file.moe_type; !moe.empty() && type == moe) return {family, true};
  }
  return {};
}

class ConfigReader {
 public:
  // accepted: null for all fields.
  ConfigReader(const std::filesystem::path& file, const std::span<const std::string>* accepted)
      : file_(file), accepted_(accepted) {}

  Result<Config> operator()() {
    LANCET_ASSIGN(ordered_json text, read_text(file_));
    const ordered_json written = text;
    if (const json rope = text.value("rope_parameters", ordered_json()); !rope.is_null()) {
      spelled_["rope_scaling"] = "rope_parameters";
      if (rope.is_object() && rope.contains("rope_theta")) spelled_["rope_theta"] = "rope_parameters.rope_theta";
    }
    LANCET_TRY(to_version_4(text, file_));
    const json type = text.value("model_type", json());
    const auto [family, is_moe_type] = family_of(type);
    if (!family)
      return wrong(file_, "model_type", fmt::format("one of \"{}\"", fmt::join(family_names(), "\", \"")), shown(type));
    family_ = family;
    const json window = text.value("sliding_window", ordered_json());
    positions_ = text.value("max_position_embeddings", ordered_json());
    blocks_ = text.value("num_hidden_layers", text.value("n_layer", ordered_json()));
    whole_window_ = window.is_number() && positions_.is_number() && window >= positions_;
    format_ = &family->file;
    if (const auto first = format_->first_window; first && window.is_number()) {
      const json from = text.value("max_window_layers", ordered_json(*first));
      has_no_window_ = !text.value("layer_types", ordered_json()).is_null() ||
                       (from.is_number() && blocks_.is_number() && from >= blocks_);
    }
    model_["model_type"] = family->name;
    has_experts_ = format_->moe_type.empty() || is_moe_type;
    if (!has_experts_) model_["moe_layer_freq"] = 0;
    for (const auto& [key, value] : text.items())
      if (key != "model_type") LANCET_TRY(take(key, value));
    LANCET_TRY(check_needed());
    LANCET_TRY(check_accepted(written));
    const json whole{{"model", model_}, {"train", {{"micro_batch_size", 1}}}};
    const std::string where = file_.string() + ": ";
    auto config = parse(json_text(whole), file_.string());
    if (!config.ok()) return data_error(where + as_spelled(config.error().message.substr(where.size())));
    config->train.micro_batch_size = config->model.router_group_size.value_or(1);  // a multiple of it
    config->train.seq_len = std::min<std::int64_t>(config->model.n_positions, 4096);
    config->train.lr = 1e-5;
    if (const Status status = check(*config, 1); !status.ok())
      return data_error(where + as_spelled(status.error().message.substr(std::string_view("config: ").size())));
    if (is_moe_type && !config->model.has_moe())
      return wrong(file_, "moe_layer_freq", fmt::format("1 or more in a {}", format_->moe_type),
                   "0: no layer of experts");
    return config;
  }

 private:
  template <class F>
  void for_each_field(const F& f) const {
    for (const FileField& field : format_->fields)
      if (family_->has(field.name)) f(field);
    if (!has_experts_) return;
    for (const FileField& field : format_->moe_fields) f(field);
  }

  Status take(const std::string& key, const json& value) {
    const FixedField* fixed = nullptr;
    for (const auto& fields : format_->fixed)
      for (const FixedField& field : fields)
        if (field.name == key) fixed = &field;
    if (whole_window_ && (key == "sliding_window" || (key == "use_sliding_window" && value.is_boolean()))) return {};
    if (has_no_window_ && key == "sliding_window") return {};
    if (fixed) return check_fixed(*fixed, value);
    if (key == "layer_types") return check_attention(value);
    bool ours = false;
    Status status;
    for_each_field([&](const FileField& field) {
      if (key != field.name && key != field.other_name) return;
      ours = true;
      spelled_.emplace(field.name, key);
      json now = value;
      if (key == "rope_scaling") status = read_rope(value, now);
      if (!status.ok()) return;
      const json before = model_.value(field.name, now);
      if (before != now)  // the field has another name, too
        status = wrong(file_, fmt::format("{} and {}", field.name, field.other_name), "the same in both",
                       fmt::format("{} and {}", shown(before), shown(now)));
      model_[field.name] = now;
    });
    if (!status.ok()) return status;
    const auto has = [&](auto names) { return std::ranges::find(names, key) != names.end(); };
    if (ours || value.is_null() || has(format_->unused) || has(std::span(unused_by_all)) || is_accepted(key)) return {};
    return unknown(key, fmt::format("a field of {}", shown(model_["model_type"])));
  }

  // The text with the fields of a config named as in the file.
  std::string as_spelled(std::string text) const {
    for (const Field& field : fields()) {
      const auto at = spelled_.find(key_of(field.path));
      if (section_of(field.path) == "model")
        replace_path(text, field.path, at == spelled_.end() ? key_of(field.path) : at->second);
    }
    return text;
  }

  bool is_accepted(const std::string& name) {
    if (!accepted_) return true;
    if (std::ranges::find(*accepted_, name) == accepted_->end()) return false;
    used_.insert(name);
    return true;
  }

  // Each name that is accepted passes over something of the file.
  Status check_accepted(const ordered_json& written) const {
    if (!accepted_) return {};
    for (const std::string& name : *accepted_) {
      if (used_.contains(name)) continue;
      const std::string outer(section_of(name)), inner(key_of(name));
      const ordered_json object = outer.empty() ? written : written.value(outer, ordered_json());
      const bool is_there = object.is_object() && object.contains(inner);
      if (is_there)
        return config_error(
            fmt::format("--accept-field {}: expected a field that must be accepted, found one that {} is read with",
                        cut(name, 60), file_.string()));
      return config_error(fmt::format("--accept-field {}: expected a field of {}, found none of that name",
                                      cut(name, 60), file_.string()));
    }
    return {};
  }

  Error unknown(const std::string& name, const std::string& kind) const {
    return wrong(file_, cut(name, 60), kind + " that is known here",
                 fmt::format("another one; --accept-field {} passes it over", cut(name, 60)));
  }

  // A field that has a value of another model.
  Status other(std::string_view name, std::string_view expected, const json& found) {
    if (is_accepted(std::string(name))) return {};
    return wrong(file_, name, expected, fmt::format("{}; --accept-field {} passes it over", shown(found), name));
  }

  // rope_scaling as a run config has it, or null.
  Status read_rope(const json& value, json& rope) {
    rope = rope_of(value);
    if (!rope.is_object()) return {};
    const std::string& field = spelled_.at("rope_scaling");
    if (rope.contains("type")) return wrong(file_, field, "the same type and rope_type", shown(value));
    const json type = rope.value("rope_type", json());
    const auto words = words_of(RopeType{});
    if (type != "default" && std::ranges::find(words, type) == words.end()) return {};  // the parser says which
    const json members = rope;
    for (const auto& [name, member] : members.items()) {
      const auto is_known = [&, &name = name](const RopeKey& key) {
        return key.name == name && (name == "rope_type" || key.types.find(type.get<std::string>()) != key.types.npos);
      };
      if (std::ranges::any_of(rope_keys(), is_known)) continue;
      const std::string path = fmt::format("{}.{}", field, name);
      if (!is_accepted(path) && !is_accepted("rope_scaling." + name))
        return unknown(path, fmt::format("a member of rope_type {}", shown(type)));
      rope.erase(name);
    }
    if (type == "default") rope = nullptr;
    return {};
  }

  // Of each block.
  Status check_attention(const json& kinds) {
    const auto is_full = [&](const json& kind) {
      return kind == "full_attention" || (whole_window_ && kind == "sliding_attention");
    };
    if (kinds.is_null() || (kinds.is_array() && kinds.size() == blocks_ && std::ranges::all_of(kinds, is_full)))
      return {};
    return other("layer_types", fmt::format("\"full_attention\" for each of {} blocks", shown(blocks_)), kinds);
  }

  Status check_fixed(const FixedField& field, const json& value) {
    const json one = json_of(field.value);
    if (field.any || value == one) return {};
    for (const json& same : json_of(field.synonyms))
      if (value == same) return {};
    const bool is_window = field.name == "sliding_window";
    std::string expected(field.value);
    if (is_window || field.name == "use_sliding_window")
      expected += fmt::format(" or {}at least max_position_embeddings = {}", is_window ? "" : "a sliding_window of ",
                              shown(positions_));
    return other(field.name, expected, value);
  }

  Status check_needed() const {
    std::string_view missing;
    for_each_field([&](const FileField& field) {
      if (field.needed && missing.empty() && !model_.contains(field.name)) missing = field.name;
    });
    if (!missing.empty()) return wrong(file_, missing, "a value", "no such field");
    for (const FileField& field : format_->fields)  // of moe_fields, null may be a value
      if (field.needed && family_->has(field.name) && model_.at(field.name).is_null())
        return wrong(file_, spelled_.at(std::string(field.name)), "a value", "null");
    return {};
  }

  const std::filesystem::path& file_;
  const std::span<const std::string>* accepted_;
  std::set<std::string> used_;  // of accepted_
  const Family* family_ = nullptr;
  const FileFormat* format_ = nullptr;
  bool has_experts_ = false;
  std::map<std::string, std::string, std::less<>> spelled_;  // the file's name for a field
  json blocks_, positions_;
  bool whole_window_ = false;   // attention's window holds the longest sequence
  bool has_no_window_ = false;  // no block has the window, or layer_types says which has
  json model_ = json::object();
};

}  // namespace

Result<ordered_json> read_file_config(const std::filesystem::path& file) {
  LANCET_ASSIGN(ordered_json text, read_text(file));
  LANCET_TRY(to_version_4(text, file));
  return text;
}

std::string warning_of_factor(const Model& model) {
  if (!model.rope_scaling || model.rope_scaling->rope_type != RopeType::yarn) return "";
  const double factor = model.rope_scaling->factor;
  const double original = double(model.rope_scaling->original_max_position_embeddings.value_or(0));
  // A rounded ratio makes no other model.
  if (original == 0 || std::abs(double(model.n_positions) / original - factor) <= 1e-3 * factor) return "";
  return fmt::format(
      "rope_scaling: factor {} is taken, as by transformers 5; transformers 4 takes max_position_embeddings / "
      "original_max_position_embeddings = {}",
      factor, double(model.n_positions) / original);
}

Result<Config> read_hugging_face(const std::filesystem::path& file, std::span<const std::string> accepted) {
  return ConfigReader(file, &accepted)();
}

Result<Config> read_accepted(const std::filesystem::path& file) { return ConfigReader(file, nullptr)(); }

bool is_hugging_face(const std::filesystem::path& folder) {
  const auto has = [&](std::string_view name) {
    std::error_code ignored;
    return std::filesystem::exists(folder / name, ignored);
  };
  return has("config.json") && (has(weights_file) || has(index_file)) && !has("manifest.json") && !has("checkpoints");
}

std::span<const std::string_view> training_fields() {
  static constexpr std::string_view names[] = {
      "capacity_factor",         "dropless_imbalance",   "router_group_size",     "router_jitter_noise",
      "router_aux_loss_coef",    "router_aux_loss_form", "router_aux_loss_scope", "router_z_loss_coef",
      "router_bias_update_rate", "vocab_pad_multiple"};
  return names;
}

Status check_same_model(const Model& model, const Model& saved, const std::string& where) {
  Config ours, theirs;
  ours.model = model.resolved();
  theirs.model = saved.resolved();
  if (&model.family() != &saved.family())
    return refused("model.model_type: expected \"{}\", as in {}, found \"{}\"", saved.family().name, where,
                   model.family().name);
  for (const Field& field : fields()) {
    const std::string_view key = key_of(field.path);
    if (section_of(field.path) != "model" || !field.is_of(model.family()) || key == "from" ||
        key == "initializer_range" || std::ranges::find(training_fields(), key) != training_fields().end() ||
        !has_effect(field.path, theirs, 1))
      continue;
    const std::string found = value_text(field.slot(ours)), expected = value_text(field.slot(theirs));
    if (found != expected) return refused("{}: expected {}, as in {}, found {}", field.path, expected, where, found);
  }
  return {};
}

}  // namespace lancet::config
