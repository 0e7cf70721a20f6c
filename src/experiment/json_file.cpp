#include "json_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lancet/base/atomic_file.h"
#include "lancet/base/json.h"
#include "lancet/base/shown.h"

namespace lancet::experiment {

using nlohmann::json;

Result<JsonFile> JsonFile::read(const std::filesystem::path& path, std::string_view what) {
  auto text = read_file(path, what);
  if (!text.ok()) return config_error(text.error().message);
  LANCET_ASSIGN(json root, parse_json(*text, path.string(), ExitCode::config, JsonComments::ignored));
  return JsonFile(path, path.string(), std::move(root));
}

Error JsonFile::fail(const std::string& where, const std::string& expected, const std::string& found) const {
  return config_error(fmt::format("{}: {}: expected {}, found {}", origin_, where, expected, found));
}

Status JsonFile::object(const json& value, const std::string& where, const Names& known) const {
  if (!value.is_object()) return fail(where, "an object", shown(value));
  for (const auto& [name, _] : value.items())
    if (std::find(known.begin(), known.end(), name) == known.end())
      return fail(where, fmt::format("the fields {}", fmt::join(known, ", ")), shown(name));
  return {};
}

Result<std::string> JsonFile::text(const json& value, const char* key, const std::string& where,
                                   const char* missing) const {
  if (!value.contains(key) && missing) return std::string(missing);
  if (!value.contains(key) || !value[key].is_string())
    return fail(where + "." + key, "a text", value.contains(key) ? shown(value[key]) : "none");
  return value[key].get<std::string>();
}

Result<Names> JsonFile::texts(const json& value, const char* key, const std::string& where, bool required) const {
  if (!value.contains(key) && !required) return Names{};
  const std::string at = where + "." + key;
  if (!value.contains(key) || !value[key].is_array() || (required && value[key].empty()))
    return fail(at, "a list of texts", value.contains(key) ? shown(value[key]) : "none");
  Names names;
  for (const json& item : value[key]) {
    if (!item.is_string()) return fail(at, "a list of texts", shown(item));
    names.push_back(item.get<std::string>());
  }
  return names;
}

Result<int> JsonFile::count(const json& value, const char* key, const std::string& where, int missing, int least,
                            int most) const {
  if (!value.contains(key)) return missing;
  const json& number = value[key];
  if (!number.is_number_integer() || number < least || number > most)
    return fail(where + "." + key, fmt::format("an integer from {} to {}", least, most), shown(number));
  return number.get<int>();
}

}  // namespace lancet::experiment
