// Manifest: the content of manifest.json, which describes a checkpoint and lists its files. It is written last and ends
// with its own checksum, so a folder with a sound manifest is complete.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"

namespace lancet::checkpoint {

struct ShardFile {
  std::string name;                              // in the checkpoint's folder; see is_shard_name
  std::uint64_t bytes = 0;                       // of the file
  std::uint64_t header_xxh3 = 0;                 // of the bytes before the tensors
  std::vector<std::uint64_t> tensors_xxh3 = {};  // of each tensor's bytes, in their order
  friend bool operator==(const ShardFile&, const ShardFile&) = default;
};

// What a run that plans again (overlap.replan) knows of the load of its ranks, so that it plans alike once resumed.
struct LoadHistory {
  struct Load {  // cost::RankLoad
    double fullest = 1, kept = 1;
    friend bool operator==(const Load&, const Load&) = default;
  };
  std::optional<Load> planned;   // that the plan was made for; none: the one that the costs hold for
  std::optional<Load> compared;  // for which a plan was last made, whether it was taken or not
  // Sums over the steps since the last comparison.
  double fullest_sum = 0, kept_sum = 0;
  std::int64_t steps = 0;
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
  LoadHistory load;  // not written while it is as in a new run
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

}  // namespace lancet::checkpoint
