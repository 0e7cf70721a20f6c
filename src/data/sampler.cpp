// Sample s belongs to epoch s / windows() and is window P(s % windows()) of the file, where P is a permutation keyed by
// (seed, epoch). The permutation is a Feistel network of 8 rounds with Philox as round function, over [0, 4^h) for the
// least h >= 4 with 4^h >= n; an output of n or more is permuted again until it is below n (cycle walking), which keeps
// the map a bijection of [0, n). Windows are seq_len tokens apart and begin at an offset that a shuffled run draws for
// each epoch. So any sample is found from the seed and its number alone, without stored state.
#include "lancet/data/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "lancet/base/check.h"
#include "lancet/base/random.h"

namespace lancet::data {
namespace {

// Rounds of the Feistel network. Four give a pseudo-random permutation if the round function is pseudo-random (Luby,
// Rackoff); the small halves here need more.
constexpr std::uint64_t kRounds = 8;

std::uint64_t epoch_stream(std::uint64_t epoch) { return stream_of("data.shuffle") + epoch; }

}  // namespace

Permutation::Permutation(std::uint64_t n, std::uint64_t seed, std::uint64_t epoch)
    : n_(n), seed_(seed), stream_(epoch_stream(epoch)) {
  LANCET_CHECK(n > 0 && n < std::uint64_t{1} << 62, "a permutation of {}", n);
  // At least 4 bits per half: with fewer, only a few permutations are reachable.
  half_bits_ = std::max(4, (static_cast<int>(std::bit_width(n - 1)) + 1) / 2);
}

std::uint64_t Permutation::operator()(std::uint64_t i) const {
  LANCET_CHECK(i < n_, "index {} in a permutation of {}", i, n_);
  const Philox random(seed_, stream_);
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  // [0, 4^half_bits) has fewer than 4 n elements unless n is small, so few repetitions lead to an index below n.
  do {
    std::uint64_t left = i >> half_bits_, right = i & mask;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t mixed = left ^ (random.block(round << 32 | right)[0] & mask);
      left = right;
      right = mixed;
    }
    i = left << half_bits_ | right;
  } while (i >= n_);
  return i;
}

Sampler::Sampler(TokenFile file, const SamplerOptions& options)
    : file_(std::move(file)),
      options_(options),
      windows_((file_.size() - 1) / static_cast<std::uint64_t>(options.seq_len)) {}

Result<Sampler> Sampler::make(TokenFile file, const SamplerOptions& options) {
  LANCET_CHECK(options.seq_len > 0 && options.global_batch > 0, "batches of {} rows of {} tokens", options.global_batch,
               options.seq_len);
  if (file.size() < static_cast<std::uint64_t>(options.seq_len) + 1)
    return data_error(fmt::format("{}: expected at least {} tokens (a row of {} and its last target), found {}",
                                  file.path().string(), options.seq_len + 1, options.seq_len, file.size()));
  return Sampler(std::move(file), options);
}

// The windows leave a remainder of fewer than seq_len tokens. The offset is the part of it left out at the front, so
// that every token is seen in some epoch.
std::uint64_t Sampler::offset(std::uint64_t epoch) const {
  if (!options_.shuffle) return 0;
  const std::uint64_t remainder = (file_.size() - 1) % static_cast<std::uint64_t>(options_.seq_len);
  return Philox(options_.seed, stream_of("data.offset")).below(epoch, remainder + 1);
}

std::uint64_t Sampler::first_token(std::uint64_t sample) const {
  const std::uint64_t epoch = sample / windows_, i = sample % windows_;
  const std::uint64_t window = options_.shuffle ? Permutation(windows_, options_.seed, epoch)(i) : i;
  return offset(epoch) + window * static_cast<std::uint64_t>(options_.seq_len);
}

Status Sampler::batch(std::uint64_t step, int rank, int ranks, int micro_batch, std::span<TokenId> inputs,
                      std::span<TokenId> targets) const {
  const auto seq_len = static_cast<std::size_t>(options_.seq_len);
  const std::size_t rows = inputs.size() / seq_len;
  LANCET_CHECK(inputs.size() == rows * seq_len && targets.size() == inputs.size() && rows > 0,
               "buffers of {} and {} tokens for rows of {}", inputs.size(), targets.size(), seq_len);
  LANCET_CHECK(ranks > 0 && rank >= 0 && rank < ranks && options_.global_batch % ranks == 0,
               "rank {} of {} for a global batch of {}", rank, ranks, options_.global_batch);
  const auto per_rank = static_cast<std::size_t>(options_.global_batch / ranks);
  const std::size_t begin = static_cast<std::size_t>(micro_batch) * rows;
  LANCET_CHECK(micro_batch >= 0 && begin + rows <= per_rank, "micro-batch {} of {} rows in the {} rows of a rank",
               micro_batch, rows, per_rank);
  const std::uint64_t first = step * static_cast<std::uint64_t>(options_.global_batch) +
                              static_cast<std::uint64_t>(options_.offset) +
                              static_cast<std::uint64_t>(rank) * per_rank + begin;
  for (std::size_t row = 0; row < rows; ++row) {
    const std::uint64_t at = first_token(first + row);
    LANCET_TRY(file_.read(at, inputs.subspan(row * seq_len, seq_len)));
    LANCET_TRY(file_.read(at + 1, targets.subspan(row * seq_len, seq_len)));
  }
  return {};
}

}  // namespace lancet::data
