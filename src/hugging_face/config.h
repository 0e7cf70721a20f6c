// config.json of a Hugging Face folder.
#pragma once
#include <filesystem>
#include <string>

#include "lancet/base/result.h"
#include "lancet/config/config.h"
#include "lancet/hugging_face/hugging_face.h"

namespace lancet::hugging_face {

std::string config_text(const config::Model& model, const HuggingFaceExport& options);

// The model's fields; everything else has its default. Errors name the file and the field.
Result<config::Config> read_config(const std::filesystem::path& file);

}  // namespace lancet::hugging_face
