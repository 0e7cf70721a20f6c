#include "report/config_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lancet/base/atomic_file.h"

namespace lancet::report {
namespace {

using nlohmann::json;

constexpr int most_depth = 16;  // a config has two levels

struct TooDeep {};

// Depth is bounded before anything walks the tree.
json parse(const std::string& text) {
  try {
    const auto watch = [](int depth, json::parse_event_t, json&) {
      if (depth > most_depth) throw TooDeep();
      return true;
    };
    return json::parse(text, watch, /*allow_exceptions=*/false, /*ignore_comments=*/true);
  } catch (const TooDeep&) {
    return json(json::value_t::discarded);
  }
}

void flatten(const json& value, const std::string& path, std::map<std::string, std::string>& fields) {
  if (!value.is_object() || value.empty()) {
    fields[path] = value.dump(-1, ' ', false, json::error_handler_t::replace);
    return;
  }
  for (const auto& [key, inner] : value.items()) flatten(inner, path.empty() ? key : path + "." + key, fields);
}

}  // namespace

Result<std::map<std::string, std::string>> read_config(const std::filesystem::path& path) {
  LANCET_ASSIGN(const std::string text, read_file(path, "a run's config"));
  const json root = parse(text);
  if (!root.is_object())
    return data_error(
        fmt::format("{}: expected a JSON object of at most {} nested brackets, found none", path.string(), most_depth));
  std::map<std::string, std::string> fields;
  flatten(root, "", fields);
  return fields;
}

}  // namespace lancet::report
