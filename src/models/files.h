// Finds the tensors of a Hugging Face folder, which has one file, or shards with an index.
#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/checkpoint/safetensors.h"

namespace lancet::models {

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

 private:
  Status open_single();
  Status open_shards(const std::filesystem::path& folder);
  Status add(const checkpoint::SafetensorsFile& file, const std::set<std::string>* listed);

  std::filesystem::path origin_;
  std::vector<std::unique_ptr<checkpoint::SafetensorsFile>> files_;
  std::map<std::string, FoundTensor, std::less<>> tensors_;
};

}  // namespace lancet::models
