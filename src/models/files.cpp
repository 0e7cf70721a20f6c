#include "files.h"

#include <fmt/format.h>

#include <algorithm>

#include "lancet/base/files.h"
#include "lancet/base/json.h"
#include "lancet/base/shown.h"
#include "lancet/config/hugging_face.h"

namespace lancet::models {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

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

// The model's fields under the family's names, and values in place of those that are null where the family's files have
// values.
ordered_json fields_of(const config::Model& model) {
  config::Config config;
  config.model = model.family().positions == config::Positions::rotary ? model.resolved() : model;
  const json ours = json_of(config::to_json(config))["model"];
  const config::FileFormat& format = model.family().file;
  ordered_json fields;
  for (const config::FileField& field : format.fields)
    if (model.family().has(field.name)) fields[field.name] = ours[field.name];
  const config::Model defaults = config::defaults_of(model.family());
  if (!model.head_dim && !defaults.head_dim) fields.erase("head_dim");  // some families have it in no file
  if (model.has_moe())
    for (const config::FileField& field : format.moe_fields) fields[field.name] = ours[field.name];
  return fields;
}

}  // namespace

Result<std::string> config_text(const config::Model& model, const HuggingFaceExport& options) {
  const config::FileFormat& format = model.family().file;
  const ordered_json fields = fields_of(model);
  const std::string_view type_name = options.dtype == DType::bf16 ? "bfloat16" : "float32";
  ordered_json text;
  const bool own_type = model.has_moe() && !format.moe_type.empty();
  if (options.source) {
    const std::filesystem::path file = *options.source / "config.json";
    LANCET_ASSIGN(text, config::read_file_config(file));
    for (const config::FileField& field : format.fields)
      if (const std::string other(field.other_name);
          model.family().has(field.name) && text.contains(other) && !text.contains(field.name)) {
        text[field.name] = text[other];
        text.erase(other);
      }
    LANCET_ASSIGN(const config::Config before, config::read_accepted(file));
    const ordered_json original = fields_of(before.model);
    for (const auto& [name, value] : fields.items())
      if (!original.contains(name) || value != original[name]) text[name] = value;
    if (options.dtype) text["torch_dtype"] = type_name;
    return json_text(text, {.indent = 2, .strict = true}) + "\n";
  }
  text["architectures"] = {own_type ? format.moe_architecture : format.architecture};
  text["model_type"] = own_type ? format.moe_type : model.family().name;
  for (const auto& [name, value] : fields.items()) text[name] = value;
  for (const auto& fixed : format.fixed)
    for (const config::FixedField& field : fixed) text[field.name] = json_of(field.value);
  text["bos_token_id"] = options.bounds.begin >= 0 ? json(options.bounds.begin) : json();
  text["eos_token_id"] = options.bounds.ends.size() == 1 ? json(options.bounds.ends.front())
                         : options.bounds.ends.empty()   ? json()
                                                         : json(options.bounds.ends);
  text["torch_dtype"] = type_name;
  return json_text(text, {.indent = 2, .strict = true}) + "\n";
}

Status copy_small_files(const std::filesystem::path& from, const std::filesystem::path& to,
                        const std::set<std::string>& except) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(from, error)) {
    const std::string name = entry.path().filename().string(), end = entry.path().extension().string();
    const bool small = end == ".json" || end == ".txt" || end == ".jinja" || end == ".model";
    std::error_code ignored;
    if (name == "additional_chat_templates" && entry.is_directory(ignored)) {
      LANCET_TRY(checkpoint::disk().make_folder(to / name));
      LANCET_TRY(copy_small_files(entry.path(), to / name, {}));
      continue;
    }
    if (!small || name.ends_with(".index.json") || except.contains(name)) continue;
    LANCET_ASSIGN(const std::string text, read_file(entry.path(), "a model's file"));
    LANCET_TRY(checkpoint::write_file(checkpoint::disk(), to / name, text));
  }
  if (error)
    return data_error(fmt::format("{}: expected a folder that can be listed: {}", from.string(), error.message()));
  return {};
}

std::string with_prefix(const std::string& name, std::string_view prefix) {
  return name.starts_with(prefix) || name == head ? name : std::string(prefix) + name;
}

Result<TensorFiles> TensorFiles::open(const std::filesystem::path& folder, std::string_view prefix) {
  TensorFiles files;
  files.prefix_ = prefix;
  std::error_code ignored;
  const auto single = folder / weights_file, index = folder / index_file;
  const bool has_single = std::filesystem::exists(single, ignored), has_index = std::filesystem::exists(index, ignored);
  if (has_single == has_index)
    return data_error(fmt::format("{}: expected {} or {}, found {}", folder.string(), weights_file, index_file,
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
    const std::string name = with_prefix(info.name, prefix_);
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

const FoundTensor* TensorFiles::find(std::string_view name) const {
  const auto at = tensors_.find(name);
  return at == tensors_.end() ? nullptr : &at->second;
}

Status TensorFiles::read(const FoundTensor& found, std::uint64_t at, std::span<std::byte> bytes) {
  const SafetensorsFile& known = *found.file;
  if (!open_ || open_->path() != known.path()) {
    open_.reset();
    LANCET_ASSIGN(SafetensorsFile again, SafetensorsFile::open(known.path()));
    if (again.header_hash() != known.header_hash())
      return data_error(fmt::format("{}: expected the tensors that it had at first, found that the file was replaced",
                                    known.path().string()));
    open_ = std::move(again);
  }
  return open_->read(*found.info, at, bytes);
}

}  // namespace lancet::models
