// Reads the config.json of a model in Hugging Face's format (file_format.h).
#pragma once
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "lancet/base/json.h"
#include "lancet/base/result.h"
#include "lancet/config/config.h"

namespace lancet::config {

// A model's config.json with the names of transformers 4: rope_theta and rope_scaling for rope_parameters, torch_dtype
// for dtype. Data errors, as below.
Result<nlohmann::ordered_json> read_file_config(const std::filesystem::path& file);

// The config of a model in Hugging Face's format: the model's fields, and defaults for training. accepted: names of
// fields, and of members as "rope_scaling.NAME" or, of rope_parameters, under either name, that are passed over
// although they are not known or must have another value. Data errors name the file and the field: no such file,
// another family, a field that is missing, unknown, out of range, or has a value that is not supported. Config error:
// an accepted name that passes over nothing.
Result<Config> read_hugging_face(const std::filesystem::path& file, std::span<const std::string> accepted = {});
// The same of a file that was read before, whose fields are all accepted.
Result<Config> read_accepted(const std::filesystem::path& file);

// Of a folder's model: transformers 4 takes YaRN's factor from the two lengths where a file has both, transformers 5
// the file's, as here. "": both are the same model.
std::string warning_of_factor(const Model& model);

// True for a folder that has such a config.json and weights, and that is not a run's or a checkpoint's.
bool is_hugging_face(const std::filesystem::path& folder);
inline constexpr std::string_view weights_file = "model.safetensors";           // of such a folder,
inline constexpr std::string_view index_file = "model.safetensors.index.json";  // or of one with shards

// In the folder of a run whose model is of this format: the small files that came with it.
inline constexpr std::string_view source_folder = "hugging_face";

// Fields of `model` that say how it is trained, not what it computes; without "model.".
std::span<const std::string_view> training_fields();

// Config error, with the first field: `model` is not the one of `saved`, but for training_fields(). Both have
// num_local_experts (Model::on). where: of the saved one.
Status check_same_model(const Model& model, const Model& saved, const std::string& where);

}  // namespace lancet::config
