// A run's checkpoints: folders step-000100/ of safetensors shards and one manifest.json.
//
// Tensors have global names and shapes that do not depend on the number of ranks that wrote them: each expert's tensors
// are stored separately, such as h.0.moe.experts.3.c_fc.weight. A folder is written under a name that ends in .tmp and
// renamed when all of it is on the disk; a folder without a sound manifest is not a checkpoint.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/checkpoint/file_system.h"
#include "lancet/checkpoint/manifest.h"
#include "lancet/checkpoint/safetensors.h"

namespace lancet::checkpoint {

std::string folder_name(std::int64_t step);                         // "step-000100"
std::optional<std::int64_t> step_of(std::string_view folder_name);  // the inverse
// The steps of all folders with such names, newest first; does not check that they are complete. Unreadable: empty.
std::vector<std::int64_t> steps_in(const std::filesystem::path& checkpoints);

// The same, but with errors: the folder exists and cannot be read (internal), or the path is not a folder (data).
Result<std::vector<std::int64_t>> list_steps(const std::filesystem::path& checkpoints);

// A checkpoint opened for reading. It keeps no file open.
class Checkpoint {
 public:
  // Reads the manifest and the shards' headers, one file after the other; contents are checked when they are read.
  // Data errors mean that the checkpoint is incomplete or damaged, and name the file: no sound manifest; a shard that
  // is missing, or has another size or header; a tensor that two shards hold. A file that may be sound but cannot be
  // read now (no descriptor left, no permission, an I/O error) is an internal error: the caller must not fall back to
  // another checkpoint. The same holds for read(), load() and verify().
  // files: read() and load() read the tensors through it; it outlives the checkpoint.
  static Result<Checkpoint> open(const std::filesystem::path& folder, FileSystem& files = disk());

  const std::filesystem::path& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  const TensorInfo* find(std::string_view name) const;  // null if there is none
  std::vector<std::string> names() const;               // sorted

  // Receives the bytes of a tensor from its byte `at` on: whole elements, in order.
  using Sink = std::function<Status(std::uint64_t at, std::span<const std::byte> bytes)>;
  struct Target {
    std::byte* memory = nullptr;  // receives the tensor's bytes; null: a temporary buffer does
    Sink sink = {};               // may be empty
  };
  // Reads the wanted tensors, no other bytes, and checks their checksums. Data errors: an unknown name; bytes that do
  // not match the manifest's checksum, after which the targets' contents are invalid. `threads` read tensors in
  // parallel; the sink of a tensor is called by one thread.
  Status load(const std::map<std::string, Target>& wanted, int threads) const;
  Status read(const std::map<std::string, Sink>& wanted) const;  // by the calling thread
  Status verify() const;                                         // all tensors

 private:
  struct Location {
    std::size_t file, index;  // index: of the tensor in the file
  };
  struct Item;
  Status add_shard(const ShardFile& shard);
  Status read_item(const Item& item, const InputFile& file, std::vector<std::byte>& buffer) const;
  Status read_items(std::vector<Item> items, int threads) const;
  std::filesystem::path path_;
  FileSystem* disk_ = nullptr;
  Manifest manifest_;
  std::vector<SafetensorsFile> files_;  // their headers; the files are closed
  std::map<std::string, Location, std::less<>> tensors_;
};

// The folder into which the checkpoint of this step is written before commit().
std::filesystem::path temporary_folder(const std::filesystem::path& checkpoints, std::int64_t step);
// Adds the manifest to temporary_folder(), where the shards must be written and synced, and renames that folder to a
// checkpoint; replaces an existing checkpoint of that step. Data errors: a shard is missing there (nothing outside the
// temporary folder has changed then), or the file system fails.
Status commit(FileSystem& files, const std::filesystem::path& checkpoints, const Manifest& manifest);

// Removes all checkpoints but the newest `last`, oldest first; 0 keeps all. Incomplete ones are neither counted nor
// removed.
Status prune(FileSystem& files, const std::filesystem::path& checkpoints, std::int64_t last);
// Removes the temporary folders of saves and removals that were interrupted.
Status remove_leftovers(FileSystem& files, const std::filesystem::path& checkpoints);
// Renames the checkpoints after this step to names such as step-000150.old, which resume ignores, and returns their
// number. If there are any, removes those that an earlier call set aside: one generation is kept.
Result<int> set_aside_after(FileSystem& files, const std::filesystem::path& checkpoints, std::int64_t step);

}  // namespace lancet::checkpoint
