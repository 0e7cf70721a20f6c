// manifest.json: what a checkpoint is, and which files it consists of. It is written last and ends with a checksum of
// itself, so a folder with a sound manifest was written to its end.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"

namespace lancet::checkpoint {

struct ShardFile {
  std::string name;               // in the checkpoint's folder: letters, digits, '.', '_', '-'; ends in .safetensors
  std::uint64_t bytes = 0;        // of the file
  std::uint64_t header_xxh3 = 0;  // of the bytes before the tensors'
  std::vector<std::uint64_t> tensors_xxh3 = {};  // of each tensor's bytes, in their order
  friend bool operator==(const ShardFile&, const ShardFile&) = default;
};

struct Manifest {
  std::int64_t step = 0;            // optimizer steps taken
  std::int64_t tokens = 0;          // seen in them
  std::int64_t skipped_steps = 0;   // of them, those that updated nothing (train.on_non_finite)
  std::int64_t skips_in_a_row = 0;  // of these, the ones that end at `step`; not written where there is none
  // The sampler: row i of the next step is sample next_sample + i, and a step has `rows` rows over all ranks. Random
  // numbers are functions of seed, stream and index (base/random.h): seed and step are their whole state.
  std::int64_t next_sample = 0, rows = 0;
  std::int64_t seed = 0;
  int ranks = 1;             // that wrote it
  std::int64_t experts = 0;  // of a layer, over all ranks; 0: dense
  // What the config asked for, before the batch was kept over a change of ranks.
  std::int64_t micro_batch_size = 0, gradient_accumulation_steps = 0;
  std::string optimizer = "none";  // "adamw", "sgd"; "none": weights alone
  std::string lr_schedule;         // with lr, the rate of the last step: for people, since both follow from the config
  double lr = 0;
  std::string config = "{}";  // as it ran: a JSON object
  std::string plan;           // hash of the plan's text
  std::vector<ShardFile> files;
};

std::string to_json(const Manifest& manifest);
// Data errors begin with `origin`: no JSON of these fields and no others, a checksum that does not fit, a file name
// that leaves the folder or stands twice.
Result<Manifest> parse_manifest(std::string_view text, std::string_view origin);
// The same without its checksum's test.
Result<Manifest> parse_manifest_fields(std::string_view text, std::string_view origin);

bool is_shard_name(std::string_view name);

}  // namespace lancet::checkpoint
