#include "config_text.h"

#include <fmt/format.h>

#include "lancet/base/atomic_file.h"
#include "lancet/base/json.h"

namespace lancet::report {
namespace {

using nlohmann::json;

void flatten(const json& value, const std::string& path, std::map<std::string, std::string>& fields) {
  if (!value.is_object() || value.empty()) {
    fields[path] = json_text(value);
    return;
  }
  for (const auto& [key, inner] : value.items()) flatten(inner, path.empty() ? key : path + "." + key, fields);
}

}  // namespace

Result<std::map<std::string, std::string>> read_config(const std::filesystem::path& path) {
  LANCET_ASSIGN(const std::string text, read_file(path, "a run's config"));
  LANCET_ASSIGN(const json root, parse_json(text, path.string(), ExitCode::data, JsonComments::ignored));
  if (!root.is_object())
    return data_error(fmt::format("{}: expected a JSON object, found {}", path.string(), root.type_name()));
  std::map<std::string, std::string> fields;
  flatten(root, "", fields);
  return fields;
}

}  // namespace lancet::report
