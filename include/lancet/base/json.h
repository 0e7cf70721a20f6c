// JSON texts. Those from users have one parser: no text crashes it, and its errors read the same for all files.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "lancet/base/result.h"

namespace lancet {

// The deepest nesting accepted, far deeper than any real file: copying and printing a json value recurse, so a text
// must not choose the depth of the stack.
constexpr int most_json_depth = 100;

enum class JsonComments { refused, ignored };  // "//" and "/* */"

// Parses a text. Errors have `code` and begin with `origin` (and line and column where they are known): the text is not
// JSON, a number does not fit a double, brackets are nested deeper than most_json_depth, an object has a key twice.
// Json: nlohmann::json or nlohmann::ordered_json.
template <class Json = nlohmann::json>
Result<Json> parse_json(std::string_view text, std::string_view origin, ExitCode code,
                        JsonComments comments = JsonComments::refused);

// A text that the program wrote, parsed; a discarded value if it is not JSON. Like json_text(), it is compiled once:
// nlohmann's own parse() and dump() take seconds in each source that calls them.
template <class Json = nlohmann::json>
Json json_of(std::string_view text);

struct JsonStyle {
  int indent = -1;      // spaces per level; -1: one line
  bool ascii = false;   // escapes all other characters
  bool strict = false;  // throws nlohmann::json::type_error on bytes that are not UTF-8, instead of replacing them
};
// The text of a value, nlohmann::json or nlohmann::ordered_json.
template <class Json>
std::string json_text(const Json& value, JsonStyle style = {});

}  // namespace lancet
