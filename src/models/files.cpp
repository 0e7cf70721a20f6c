#include "config.h"

#include <fmt/format.h>

#include "lancet/base/files.h"
#include "lancet/base/json.h"
#include "lancet/base/shown.h"

namespace lancet::models {
namespace {

using checkpoint::SafetensorsFile;
using nlohmann::json;

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

Result<TensorFiles> TensorFiles::open(const std::filesystem::path& folder) {
  TensorFiles files;
  std::error_code ignored;
  const auto single = folder / single_file, index = folder / index_file;
  const bool has_single = std::filesystem::exists(single, ignored), has_index = std::filesystem::exists(index, ignored);
  if (has_single == has_index)
    return data_error(fmt::format("{}: expected {} or {}, found {}", folder.string(), single_file, index_file,
                                  has_single ? "both" : "neither"));
  files.origin_ = has_single ? single : index;
  LANCET_TRY(has_single ? files.open_single() : files.open_shards(folder));
  return files;
}

Status TensorFiles::open_single() {
  LANCET_ASSIGN(SafetensorsFile file, SafetensorsFile::open(origin_));
  files_.push_back(std::make_unique<SafetensorsFile>(std::move(file)));
  return add(*files_.back(), nullptr);
}

Status TensorFiles::open_shards(const std::filesystem::path& folder) {
  LANCET_ASSIGN(const Shards shards, read_index(origin_));
  for (const auto& [name, listed] : shards) {
    LANCET_ASSIGN(SafetensorsFile file, SafetensorsFile::open(folder / name));
    files_.push_back(std::make_unique<SafetensorsFile>(std::move(file)));
    LANCET_TRY(add(*files_.back(), &listed));
  }
  return {};
}

Status TensorFiles::add(const SafetensorsFile& file, const std::set<std::string>* listed) {
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

}  // namespace lancet::models
