// Reads a config.json as text by field, so that a table can compare runs.
#pragma once
#include <filesystem>
#include <map>
#include <string>

#include "lancet/base/result.h"

namespace lancet::report {

// Returns for example "train.lr" -> "0.001". Any JSON object is read: a run of another version may have other fields.
// Data error: the file holds no JSON object.
Result<std::map<std::string, std::string>> read_config(const std::filesystem::path& path);

}  // namespace lancet::report
