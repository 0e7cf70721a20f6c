// A config.json as field -> value, for people to compare.
#pragma once
#include <filesystem>
#include <map>
#include <string>

#include "lancet/base/result.h"

namespace lancet::report {

// "train.lr" -> "0.001". Any JSON object will do: a run of another version may have other fields.
// Data error: a file that holds no JSON object.
Result<std::map<std::string, std::string>> read_config(const std::filesystem::path& path);

}  // namespace lancet::report
