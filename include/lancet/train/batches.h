// Where a run's tokens come from.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "lancet/base/result.h"
#include "lancet/config/config.h"

namespace lancet::train {

// The batch of any (seed, step) is the same at any number of ranks; a rank fills its own rows.
class Batches {
 public:
  virtual ~Batches() = default;
  // inputs, targets: [rows, seq_len] of micro batch `micro` of this rank.
  virtual Status fill(std::int64_t step, int micro, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) = 0;
};

// Training batches: the token file, shuffled, or synthetic tokens. Data errors: the file, its vocabulary or tokenizer.
Result<std::unique_ptr<Batches>> training_batches(const config::Config& config, int rank, int ranks);

struct Evaluation {
  std::unique_ptr<Batches> batches;  // in file order
  std::int64_t count = 0;            // batches that cover data.eval_sequences, or the file if it has fewer
};
// Empty where the config names no evaluation file.
Result<std::optional<Evaluation>> evaluation_batches(const config::Config& config, int rank, int ranks);

}  // namespace lancet::train
