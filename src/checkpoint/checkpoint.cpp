#include "lancet/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lancet/base/atomic_file.h"
#include "lancet/base/hash.h"
#include "lancet/base/shown.h"
#include "read_ahead.h"

namespace lancet::checkpoint {

namespace fs = std::filesystem;

Result<Checkpoint> Checkpoint::open(const fs::path& folder) {
  Checkpoint checkpoint;
  checkpoint.path_ = folder;
  const fs::path manifest = folder / "manifest.json";
  LANCET_ASSIGN(const std::string text, lancet::read_file(manifest, "a checkpoint's manifest"));
  LANCET_ASSIGN(checkpoint.manifest_, parse_manifest(text, manifest.string()));
  for (const ShardFile& shard : checkpoint.manifest_.files) {
    const fs::path path = folder / shard.name;
    std::error_code error;
    if (fs::is_symlink(path, error))
      return data_error(fmt::format("{}: expected a file in this folder, found a link", path.string()));
    LANCET_ASSIGN(SafetensorsFile file, SafetensorsFile::open(path));
    if (file.size() != shard.bytes)
      return data_error(fmt::format("{}: expected {} bytes, found {}", path.string(), shard.bytes, file.size()));
    checkpoint.files_.push_back(std::move(file));
  }
  for (std::size_t i = 0; i < checkpoint.files_.size(); ++i)
    for (const TensorInfo& tensor : checkpoint.files_[i].tensors()) {
      if (!checkpoint.tensors_.emplace(tensor.name, Place{i, &tensor}).second)
        return data_error(fmt::format("{}: expected each tensor in one file, found {} in a second one",
                                      checkpoint.files_[i].path().string(), shown(tensor.name)));
      if ((checkpoint.files_[i].data_start() + tensor.begin) % std::uint64_t(element_bytes(tensor.dtype)) != 0)
        return data_error(fmt::format("{}: {}: expected its bytes at a multiple of an element's {}",
                                      checkpoint.files_[i].path().string(), shown(tensor.name),
                                      element_bytes(tensor.dtype)));
    }
  return checkpoint;
}

const TensorInfo* Checkpoint::find(std::string_view name) const {
  const auto at = tensors_.find(name);
  return at == tensors_.end() ? nullptr : at->second.tensor;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : tensors_) names.push_back(name);
  return names;
}

Status Checkpoint::read(const std::map<std::string, Sink>& wanted) const {
  std::set<std::size_t> files;
  for (const auto& [name, sink] : wanted) {
    const auto at = tensors_.find(name);
    if (at == tensors_.end())
      return data_error(fmt::format("{}: expected the tensor {}, found none", path_.string(), shown(name)));
    files.insert(at->second.file);
  }
  for (const std::size_t file : files) LANCET_TRY(read_shard(file, wanted));
  return {};
}

Status Checkpoint::verify() const {
  for (std::size_t file = 0; file < files_.size(); ++file) LANCET_TRY(read_shard(file, {}));
  return {};
}

Status Checkpoint::read_shard(std::size_t index, const std::map<std::string, Sink>& wanted) const {
  const SafetensorsFile& file = files_[index];
  Hasher hasher;
  std::size_t next = 0;  // the first tensor that does not end before the piece
  LANCET_TRY(read_ahead(file, [&](std::uint64_t at, std::span<const std::byte> piece) -> Status {
    hasher.update(piece);
    const std::uint64_t end = at + piece.size();
    for (std::size_t i = next; i < file.tensors().size(); ++i) {
      const TensorInfo& tensor = file.tensors()[i];
      const std::uint64_t begin = file.data_start() + tensor.begin, stop = begin + tensor.bytes();
      if (begin >= end) break;
      if (stop <= end) next = i + 1;
      const std::uint64_t from = std::max(begin, at), to = std::min(stop, end);
      if (from >= to) continue;
      if (const auto sink = wanted.find(tensor.name); sink != wanted.end())
        LANCET_TRY(sink->second(from - begin, piece.subspan(from - at, to - from)));
    }
    return {};
  }));
  if (hasher.digest() != manifest_.files[index].xxh3)
    return data_error(fmt::format("{}: expected the checksum {}, found {}: the file was damaged", file.path().string(),
                                  hex(manifest_.files[index].xxh3), hex(hasher.digest())));
  return {};
}

}  // namespace lancet::checkpoint
