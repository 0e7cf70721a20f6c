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
#include "lancet/config/hugging_face.h"
#include "lancet/models/hugging_face.h"

namespace lancet::models {

using config::index_file, config::weights_file;

// The text of config.json. options.source: what its config.json has stays, but for fields that the model has otherwise.
Result<std::string> config_text(const config::Model& model, const HuggingFaceExport& options);

// Finds and reads the tensors of a Hugging Face folder, which has one file, or shards with an index.
struct FoundTensor {
  const checkpoint::SafetensorsFile* file = nullptr;
  const checkpoint::TensorInfo* info = nullptr;
};

inline constexpr std::string_view head = "lm_head.weight";  // has no prefix

inline constexpr std::string_view types_file = "tensors.json";  // of HuggingFaceFolder::keep_files()

// Copies the texts and tokenizer's files of a folder and of its additional_chat_templates/ as they are, but for these
// names and indices of shards.
Status copy_small_files(const std::filesystem::path& from, const std::filesystem::path& to,
                        const std::set<std::string>& except);

std::string with_prefix(const std::string& name, std::string_view prefix);  // adds it where a tensor's name lacks it

class TensorFiles {
 public:
  // prefix: of the names, which files may leave out. Data errors: no file; both a whole file and an index; a damaged
  // file; a name twice; an index that names a missing tensor or file, lacks a tensor of a shard, or names files outside
  // the folder.
  static Result<TensorFiles> open(const std::filesystem::path& folder, std::string_view prefix);

  // By name with the prefix.
  const std::map<std::string, FoundTensor, std::less<>>& tensors() const { return tensors_; }
  const FoundTensor* find(std::string_view name) const;  // null if there is none
  // The file, or the index, for errors.
  const std::filesystem::path& origin() const { return origin_; }
  // Fills `bytes` with the tensor's from byte `at` on. One file is open at a time, so tensors are best read file by
  // file. Data errors: the file was changed since open(), or cannot be read.
  Status read(const FoundTensor& found, std::uint64_t at, std::span<std::byte> bytes);

 private:
  Status open_shards(const std::filesystem::path& folder);
  Status add(const std::filesystem::path& path, const std::set<std::string>* listed);

  std::string prefix_;
  std::filesystem::path origin_;
  std::vector<std::unique_ptr<checkpoint::SafetensorsFile>> files_;  // their headers; the files are closed
  std::optional<checkpoint::SafetensorsFile> open_;                  // the one read last
  std::map<std::string, FoundTensor, std::less<>> tensors_;
};

// Converts values between a file's tensor and a parameter of the model.
bool is_weight_type(std::string_view dtype);  // true for F32, F16, BF16
void to_floats(std::string_view dtype, std::span<const std::byte> bytes, std::span<float> values);
void from_floats(std::string_view dtype, std::span<const float> values, std::span<std::byte> bytes);

// to[c, r] = from[r, c]
void transpose(std::span<const float> from, std::int64_t rows, std::int64_t columns, std::span<float> to);

}  // namespace lancet::models
