// Batches of tokens for training and evaluation, from token files or synthetic.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "lancet/base/result.h"
#include "lancet/config/config.h"
#include "lancet/data/token_file.h"
#include "lancet/data/tokenizer.h"

namespace lancet::data {

// The global batch of a (seed, step) does not depend on the number of ranks; each rank fills the rows of its place
// among the ranks that the batch is split over.
class Batches {
 public:
  virtual ~Batches() = default;
  // inputs, targets: [rows, seq_len] of micro batch `micro` of this rank.
  virtual Status fill(std::int64_t step, int micro, std::span<std::int32_t> inputs,
                      std::span<std::int32_t> targets) = 0;
};

// The order of the sequences of a run or an evaluation, which gives each a number that no other one has, up to 2^32 of
// them. Row i of the global batch of step s has number s * rows + offset + i, where `rows` is the number of rows of all
// ranks and micro batches: the numbers depend on neither.
struct SequenceOrder {
  std::int64_t place = 0, places = 1;  // this rank's among those that the batch is split over
  std::int64_t micro_batches = 1;      // of a step
  std::int64_t offset = 0;             // SamplerOptions::offset
  // The numbers of the sequences that Batches::fill() gives this rank, one for each, modulo 2^32.
  void fill(std::int64_t step, int micro, std::span<std::int32_t> numbers) const;
};
// That of training_batches() and, of evaluation_batches(), with one micro batch and no offset.
SequenceOrder training_order(const config::Config& config, int rank, int ranks, std::int64_t sample_offset = 0);
SequenceOrder evaluation_order(const config::Config& config, int rank, int ranks);

// The tokenizer in the folder data.tokenizer; empty if the config names none. Data errors: it cannot be read, its
// vocabulary is larger than model.vocab_size, train.sample_prompt cannot be encoded.
Result<std::optional<Tokenizer>> load_tokenizer(const config::Config& config);

// The tokenizer of the training tokens: the one that data.train names, or else data.tokenizer. Unknown: synthetic
// tokens; a file of llm.c without data.tokenizer. Data errors: the file or folder cannot be read.
Result<TokenizerId> tokenizer_of_training(const config::Config& config);
// A text that differs where token files do (TokenFile::fingerprint). Empty paths are left out.
Result<std::string> fingerprint_of(std::span<const std::string> token_files);

// Training batches: the token file, shuffled, or synthetic tokens. Data errors: the file, its vocabulary or tokenizer.
// tokenizer: expected of the file. sample_offset: SamplerOptions::offset.
Result<std::unique_ptr<Batches>> training_batches(const config::Config& config, const TokenizerId& tokenizer, int rank,
                                                  int ranks, std::int64_t sample_offset = 0);

// The target of a position that does not count towards the loss.
inline constexpr std::int32_t ignored_target = -1;

// The first `sequences` windows of the evaluation file, each once for any number of ranks: window i is row i of the
// `count` batches of micro_batch_size * config::batch_ranks rows, in order. Rows after the last window repeat windows
// from the front as inputs, with every target ignored_target, so a rank's batch may have no target that counts. The
// mean loss is the sum of the losses at the other targets over sequences * seq_len.
struct Evaluation {
  std::unique_ptr<Batches> batches;  // in file order; the batch number is fill()'s `step`, micro is 0
  std::int64_t count = 0;            // ceil(sequences / (micro_batch_size * batch_ranks))
  // data.eval_sequences, or all windows of the file if it has fewer; where experts choose, as many as make whole
  // groups.
  std::int64_t sequences = 0;
};
// Empty if the config names no evaluation file. tokenizer: expected of the file. Data errors: the file, its vocabulary
// or tokenizer; fewer sequences than a group has, where experts choose.
Result<std::optional<Evaluation>> evaluation_batches(const config::Config& config, const TokenizerId& tokenizer,
                                                     int rank, int ranks);

// Sampler: the tokens of each training step, as a function of (seed, step) alone. A run therefore resumes from its step
// number, and the global batch does not depend on the number of ranks. The shuffle is a keyed permutation and needs no
// memory.

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
  // rows = inputs.size() / seq_len. The micro-batches of all ranks follow one another in the global batch, rank after
  // rank within each, so that micro-batch m is the same rows on any number of ranks. `ranks` divides global_batch.
  // Threads may share a sampler.
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
