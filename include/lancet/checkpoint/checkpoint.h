// A run's checkpoints: folders step-000100/ of safetensors shards and one manifest.json.
//
// Tensors carry global names and shapes whatever the number of ranks that wrote them: an expert's stand as
// h.0.moe.experts.3.c_fc.weight. A folder is written under a name that ends in .tmp and renamed once, when all of it is
// on the disk; what has no sound manifest is no checkpoint.
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
// The steps of the folders of such names, newest first; whether they are whole is not looked at.
std::vector<std::int64_t> steps_in(const std::filesystem::path& checkpoints);

// The same. Error: the folder is there, and the system does not let it be read, so that nobody knows what is in it.
Result<std::vector<std::int64_t>> list_steps(const std::filesystem::path& checkpoints);

// A checkpoint that is read. It keeps no file open.
class Checkpoint {
 public:
  // Reads the manifest and the shards' headers, one file after the other. Data errors, which mean that this is no whole
  // checkpoint, name the file: no sound manifest; a shard that is not there, of another size or with another header; a
  // tensor that two shards hold. Contents are checked when they are read. Where the system does not let a file be read
  // that may be sound (no descriptor left, no permission, an I/O error), an internal error says so: no reason to take
  // another checkpoint. So do read(), load() and verify().
  // files: read() and load() take the tensors through it; it outlives the checkpoint.
  static Result<Checkpoint> open(const std::filesystem::path& folder, FileSystem& files = disk());

  const std::filesystem::path& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  const TensorInfo* find(std::string_view name) const;  // null where there is none
  std::vector<std::string> names() const;               // sorted

  // Takes bytes of a tensor, in order, from its byte `at` on; whole elements.
  using Sink = std::function<Status(std::uint64_t at, std::span<const std::byte> bytes)>;
  struct Target {
    std::byte* memory = nullptr;  // takes the tensor's bytes; null: they pass through
    Sink sink = {};               // may be empty
  };
  // Reads the wanted tensors, no other bytes, and checks their checksums. Data errors: a name that is not there; bytes
  // that are not those of the manifest: what targets took is worthless then. Several tensors are read at once by
  // `threads`; each one's sink is called by one thread.
  Status load(const std::map<std::string, Target>& wanted, int threads) const;
  Status read(const std::map<std::string, Sink>& wanted) const;  // by this thread alone
  Status verify() const;                                         // all tensors

 private:
  struct Place {
    std::size_t file, index;  // of the tensor in the file
  };
  struct Item;
  Status add_shard(const ShardFile& shard);
  Status read_item(const Item& item, const InputFile& file, std::vector<std::byte>& buffer) const;
  Status read_items(std::vector<Item> items, int threads) const;
  std::filesystem::path path_;
  FileSystem* disk_ = nullptr;
  Manifest manifest_;
  std::vector<SafetensorsFile> files_;  // closed
  std::map<std::string, Place, std::less<>> tensors_;
};

// Where a checkpoint of this step is written before it is whole.
std::filesystem::path temporary_folder(const std::filesystem::path& checkpoints, std::int64_t step);
// The shards lie in temporary_folder(), written and synced: adds the manifest and makes the folder a checkpoint. A
// checkpoint of that step that is there goes. Data error, with nothing changed but in the temporary folder: a shard
// that is missing there, or what the file system says.
Status commit(FileSystem& files, const std::filesystem::path& checkpoints, const Manifest& manifest);

struct KeepRule {
  std::int64_t last = 0;   // the newest so many; 0: all
  std::int64_t every = 0;  // and those of every so many steps; 0: none
};
// Removes the others, oldest first; those that are not whole are not counted and stay.
Status prune(FileSystem& files, const std::filesystem::path& checkpoints, const KeepRule& rule);
// Removes what writing or removing left behind when it was interrupted.
Status remove_leftovers(FileSystem& files, const std::filesystem::path& checkpoints);
// Renames the checkpoints after this step to step-000150.old, where resume does not see them; their number. If there
// are any, those that an earlier call had set aside are removed: one generation is kept.
Result<int> set_aside_after(FileSystem& files, const std::filesystem::path& checkpoints, std::int64_t step);

}  // namespace lancet::checkpoint
