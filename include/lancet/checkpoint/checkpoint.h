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
#include "lancet/checkpoint/safetensors.h"

namespace lancet::checkpoint {

// Manifest: the content of manifest.json, which describes a checkpoint and lists its files. It is written last and ends
// with its own checksum, so a folder with a sound manifest is complete.
struct ShardFile {
  std::string name;                              // in the checkpoint's folder; see is_shard_name
  std::uint64_t bytes = 0;                       // of the file
  std::uint64_t header_xxh3 = 0;                 // of the bytes before the tensors
  std::vector<std::uint64_t> tensors_xxh3 = {};  // of each tensor's bytes, in their order
  friend bool operator==(const ShardFile&, const ShardFile&) = default;
};

// What a run that plans again (overlap.replan) knows of the load of its ranks, so that it plans alike once resumed.
struct LoadHistory {
  // By step, layer and expert, the tokens that chose it.
  using Counts = std::vector<std::vector<std::vector<double>>>;
  Counts planned;          // that the plan was made for; empty: what the costs hold for
  Counts compared;         // for which a plan was last made, whether it was taken or not
  Counts recorded;         // of some of the steps since the last comparison
  std::int64_t steps = 0;  // since then
  friend bool operator==(const LoadHistory&, const LoadHistory&) = default;
};

struct Manifest {
  std::int64_t step = 0;            // optimizer steps taken
  std::int64_t tokens = 0;          // trained on in those steps
  std::int64_t skipped_steps = 0;   // steps whose update was skipped (train.on_non_finite)
  std::int64_t skips_in_a_row = 0;  // skipped steps without a break up to `step`; 0 is not written
  // The sampler: row i of the next step is sample next_sample + i, and a step has `rows` rows over all ranks. Random
  // numbers are functions of seed, stream and index (base/random.h): seed and step are their whole state.
  std::int64_t next_sample = 0, rows = 0;
  std::int64_t seed = 0;
  int ranks = 1;             // that wrote the checkpoint
  std::int64_t experts = 0;  // of a layer, over all ranks; 0: dense
  // The values of the config, before they were adapted to keep the batch size over a change of ranks.
  std::int64_t micro_batch_size = 0, gradient_accumulation_steps = 0;
  std::string optimizer = "none";  // "adamw", "sgd"; "none": weights alone
  std::string lr_schedule;  // this and lr, the rate of the last step, are for people: both follow from the config
  double lr = 0;
  std::string config = "{}";  // the resolved config: a JSON object
  std::string plan;           // hash of the plan's text
  // Tokenizer::hash() of the tokens that the model was trained on (data/tokenizer.h); 0, which is not written: unknown.
  std::uint64_t tokenizer_hash = 0;
  LoadHistory load;               // not written while it is as in a new run
  std::int64_t device_bytes = 0;  // that a rank's plans may take (run::bytes_for_plans()); 0 is not written
  std::vector<ShardFile> files;
};

std::string to_json(const Manifest& manifest);
// Data errors begin with `origin`: the text is not JSON with exactly these fields, its checksum is wrong, a file's name
// is not a shard name or appears twice.
Result<Manifest> parse_manifest(std::string_view text, std::string_view origin);
// The same without the test of the checksum.
Result<Manifest> parse_manifest_fields(std::string_view text, std::string_view origin);

// Letters, digits, '.', '_' and '-'; does not begin with '.', ends in .safetensors, has at most 200 characters.
bool is_shard_name(std::string_view name);

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
  // another checkpoint. The same holds for load().
  // files: load() reads the tensors through it; it outlives the checkpoint.
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

 private:
  struct Location {
    std::size_t file, index;  // index: of the tensor in the file
  };
  struct Item;
  Status add_shard(const ShardFile& shard);
  Status read_item(const Item& item, const InputFile& file, std::vector<std::byte>& buffer) const;
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
