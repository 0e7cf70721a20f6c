// The files of a Hugging Face folder: config.json, and the tensors with their values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/dtype.h"
#include "lancet/base/result.h"
#include "lancet/checkpoint/safetensors.h"
#include "lancet/config/config.h"
#include "lancet/models/hugging_face.h"

namespace lancet::models {

// The text of config.json.
std::string config_text(const config::Model& model, const HuggingFaceExport& options);

// Reads the model's fields; all others have their defaults. Errors name the file and the field.
Result<config::Config> read_config(const std::filesystem::path& file);

// config.json's tie_word_embeddings.
Result<bool> has_tied_head(const std::filesystem::path& file);

// Finds and reads the tensors of a Hugging Face folder, which has one file, or shards with an index.
struct FoundTensor {
  const checkpoint::SafetensorsFile* file = nullptr;
  const checkpoint::TensorInfo* info = nullptr;
};

class TensorFiles {
 public:
  // Data errors: no file; both a whole file and an index; a damaged file; a name twice; an index that names a missing
  // tensor or file, lacks a tensor of a shard, or names files outside the folder.
  static Result<TensorFiles> open(const std::filesystem::path& folder);

  // By name without the prefix "transformer.".
  const std::map<std::string, FoundTensor, std::less<>>& tensors() const { return tensors_; }
  // The file, or the index, for errors.
  const std::filesystem::path& origin() const { return origin_; }
  // Fills `bytes` with the tensor's, all of them. One file is open at a time, so tensors are best read file by file.
  // Data errors: the file was changed since open(), or cannot be read.
  Status read(const FoundTensor& found, std::span<std::byte> bytes);

 private:
  Status open_shards(const std::filesystem::path& folder);
  Status add(const std::filesystem::path& path, const std::set<std::string>* listed);

  std::filesystem::path origin_;
  std::vector<std::unique_ptr<checkpoint::SafetensorsFile>> files_;  // their headers; the files are closed
  std::optional<checkpoint::SafetensorsFile> open_;                  // the one read last
  std::map<std::string, FoundTensor, std::less<>> tensors_;
};

inline constexpr std::string_view prefix = "transformer.";
inline constexpr std::string_view tied_head = "lm_head.weight";  // optional; the same values as wte.weight
inline constexpr std::string_view single_file = "model.safetensors";
inline constexpr std::string_view index_file = "model.safetensors.index.json";

// Converts values between a file's tensor and a parameter of the model: types, and the transposition of Conv1D weights.
bool is_weight_type(std::string_view dtype);  // true for F32, F16, BF16
void to_floats(std::string_view dtype, std::span<const std::byte> bytes, std::span<float> values);
void from_floats(DType dtype, std::span<const float> values, std::span<std::byte> bytes);

// to[c, r] = from[r, c]
void transpose(std::span<const float> from, std::int64_t rows, std::int64_t columns, std::span<float> to);

}  // namespace lancet::models
