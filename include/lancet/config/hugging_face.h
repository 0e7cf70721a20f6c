// Reads the config.json of a model in Hugging Face's format (file_format.h).
#pragma once
#include <filesystem>
#include <span>
#include <string>

#include "lancet/base/json.h"
#include "lancet/base/result.h"
#include "lancet/config/config.h"

namespace lancet::config {

// A model's config.json with the names of transformers 4: rope_theta and rope_scaling for rope_parameters, torch_dtype
// for dtype. Data errors, as below.
Result<nlohmann::ordered_json> read_file_config(const std::filesystem::path& file);

// The config of a model in Hugging Face's format: the model's fields, and defaults for training. accepted: names of
// fields that are passed over although nothing is known of them. Data errors name the file and the field: no such
// file, another family, a field that is missing, unknown, out of range, or has a value that is not supported.
Result<Config> read_hugging_face(const std::filesystem::path& file, std::span<const std::string> accepted = {});

}  // namespace lancet::config
