// JSON texts that users give: one reader for all of them, so that none crashes and all errors read the same.
#pragma once
#include <nlohmann/json.hpp>
#include <string_view>

#include "lancet/base/result.h"

namespace lancet {

// Far deeper than any file of ours; copying and printing a json value recurse, so that depth must not come from a text.
constexpr int most_json_depth = 100;

enum class JsonComments { refused, ignored };  // "//" and "/* */"

// The tree of a text. Errors, with `code` and led by `origin` (line and column where they are known): no JSON, a number
// that no double holds, brackets nested deeper than most_json_depth, a key that stands twice in one object.
// Json: nlohmann::json or nlohmann::ordered_json.
template <class Json = nlohmann::json>
Result<Json> parse_json(std::string_view text, std::string_view origin, ExitCode code,
                        JsonComments comments = JsonComments::refused);

}  // namespace lancet
