// Reads and writes config.json of a Hugging Face folder.
#pragma once
#include <filesystem>
#include <string>

#include "lancet/base/result.h"
#include "lancet/config/config.h"
#include "lancet/models/hugging_face.h"

namespace lancet::models {

// The text of config.json.
std::string config_text(const config::Model& model, const HuggingFaceExport& options);

// Reads the model's fields; all others have their defaults. Errors name the file and the field.
Result<config::Config> read_config(const std::filesystem::path& file);

}  // namespace lancet::models
