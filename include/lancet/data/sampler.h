// Sampler: the tokens of each training step, as a function of (seed, step) alone. A run therefore resumes from its step
// number, and the global batch does not depend on the number of ranks. The shuffle is a keyed permutation and needs no
// memory.
#pragma once
#include <cstdint>
#include <span>

#include "lancet/base/result.h"
#include "lancet/data/token_file.h"

namespace lancet::data {

// A bijection of [0, n) keyed by (seed, epoch): a Feistel network over a power of four that is at least n, applied
// repeatedly until the result is below n (cycle walking).
class Permutation {
 public:
  Permutation(std::uint64_t n, std::uint64_t seed, std::uint64_t epoch);  // 0 < n < 2^62
  std::uint64_t operator()(std::uint64_t i) const;                        // i < n

 private:
  std::uint64_t n_, seed_, stream_;
  int half_bits_;
};

struct SamplerOptions {
  std::int64_t seq_len = 0;       // tokens of one row
  std::int64_t global_batch = 0;  // rows of one step, over all ranks and micro-batches
  std::uint64_t seed = 0;
  std::int64_t offset = 0;  // first sample of step 0; not 0 in a run whose batch size has changed
  bool shuffle = true;      // false: windows in file order (evaluation); the seed is not used
};

// The file is cut into windows() windows of seq_len inputs; the last target of a window is the first input of the next.
// An epoch has every window once, and epochs follow one another without end. Row i of step s is sample
// s * global_batch + offset + i of that sequence.
class Sampler {
 public:
  // Data error: the file is too short for one window.
  static Result<Sampler> make(TokenFile file, const SamplerOptions& options);

  // Writes micro-batch number `micro_batch` of this rank's rows of step `step`: inputs and targets are [rows, seq_len],
  // rows = inputs.size() / seq_len. Rank r owns the global batch's rows [r, r+1) * global_batch / ranks, and its
  // micro-batches follow one another in them. `ranks` divides global_batch. Threads may share a sampler.
  // Data error: an id outside the file's vocabulary.
  Status batch(std::uint64_t step, int rank, int ranks, int micro_batch, std::span<TokenId> inputs,
               std::span<TokenId> targets) const;

  std::uint64_t windows() const { return windows_; }
  // The position in the file of the first input of sample `sample`.
  std::uint64_t first_token(std::uint64_t sample) const;

 private:
  Sampler(TokenFile file, const SamplerOptions& options);
  std::uint64_t offset(std::uint64_t epoch) const;
  TokenFile file_;
  SamplerOptions options_;
  std::uint64_t windows_ = 0;
};

}  // namespace lancet::data
