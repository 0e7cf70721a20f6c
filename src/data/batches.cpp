#include "lancet/data/batches.h"

#include <fmt/format.h>
#include <algorithm>
#include <bit>

#include "lancet/base/check.h"
#include "lancet/base/random.h"

namespace lancet::data {
namespace {

class FileBatches final : public Batches {
 public:
  FileBatches(Sampler sampler, int rank, int ranks) : sampler_(std::move(sampler)), rank_(rank), ranks_(ranks) {}
  Status fill(std::int64_t step, int micro, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) override {
    return sampler_.batch(static_cast<std::uint64_t>(step), rank_, ranks_, micro, inputs, targets);
  }

 private:
  Sampler sampler_;
  int rank_, ranks_;
};

// Window i of the file is row i of the batches, over all ranks; rows after the last window are filler.
class EvaluationBatches final : public Batches {
 public:
  // sampler: with batches of one row, in file order.
  EvaluationBatches(Sampler sampler, std::int64_t seq_len, std::int64_t sequences, int rank, int ranks)
      : sampler_(std::move(sampler)), seq_len_(seq_len), sequences_(sequences), rank_(rank), ranks_(ranks) {}
  Status fill(std::int64_t step, int, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) override {
    const auto length = static_cast<std::size_t>(seq_len_);
    const auto rows = static_cast<std::int64_t>(inputs.size() / length);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t window = (step * ranks_ + rank_) * rows + row;
      const std::size_t at = static_cast<std::size_t>(row) * length;
      LANCET_TRY(sampler_.batch(static_cast<std::uint64_t>(window % sequences_), 0, 1, 0, inputs.subspan(at, length),
                                targets.subspan(at, length)));
      if (window >= sequences_) std::ranges::fill(targets.subspan(at, length), ignored_target);
    }
    return {};
  }

 private:
  Sampler sampler_;
  std::int64_t seq_len_, sequences_;
  int rank_, ranks_;
};

// Draws tokens from the seed. Every second token is a function of the one before it, so that a model can learn.
class SyntheticBatches final : public Batches {
 public:
  SyntheticBatches(const config::Config& config, int rank, int ranks) : config_(config), rank_(rank), ranks_(ranks) {}
  Status fill(std::int64_t step, int micro, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) override {
    const std::int64_t length = config_.train.seq_len, rows = std::int64_t(inputs.size()) / length;
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto global_row = static_cast<std::uint64_t>((std::int64_t(micro) * ranks_ + rank_) * rows + row);
      const Philox random(static_cast<std::uint64_t>(config_.train.seed),
                          static_cast<std::uint64_t>(step) << 32 | global_row);
      for (std::int64_t i = 0; i < length; ++i) {
        inputs[std::size_t(row * length + i)] = token(random, i);
        targets[std::size_t(row * length + i)] = token(random, i + 1);
      }
    }
    return {};
  }

 private:
  std::int32_t token(const Philox& random, std::int64_t i) const {
    const auto vocabulary = static_cast<std::uint64_t>(config_.model.vocab_size);
    const std::uint64_t drawn = random.below(static_cast<std::uint64_t>(i / 2), vocabulary);
    const std::uint64_t first = drawn * drawn / vocabulary;  // small ids are frequent, as in real text
    return static_cast<std::int32_t>(i % 2 ? (3 * first + 1) % vocabulary : first);
  }

  const config::Config config_;
  int rank_, ranks_;
};

Result<TokenFile> open_tokens(const config::Config& config, const TokenizerId& tokenizer, const std::string& path) {
  LANCET_ASSIGN(TokenFile file, TokenFile::open(path, static_cast<int>(config.model.vocab_size)));
  LANCET_TRY(check_same(tokenizer, {file.tokenizer_hash(), path}));
  return file;
}

// The sequences that make whole groups. Experts that choose would compare the tokens of an incomplete group with
// filler.
Result<std::int64_t> whole_groups(const config::Config& config, std::int64_t of_file) {
  const std::int64_t group = config.group_sequences(), sequences = std::min(config.data.eval_sequences, of_file);
  if (sequences >= group) return sequences - sequences % group;
  if (of_file >= group)
    return config_error(
        fmt::format("data.eval_sequences (--max-sequences): expected at least the {} of one group of model.router "
                    "\"expert_choice\", found {}",
                    group, sequences));
  return data_error(
      fmt::format("{}: expected at least the {} sequences of one group of model.router \"expert_choice\", found {}",
                  config.data.eval, group, of_file));
}

}  // namespace

void SequenceOrder::fill(std::int64_t step, int micro, std::span<std::int32_t> numbers) const {
  const auto rows = std::int64_t(numbers.size());
  const std::int64_t first = ((step * micro_batches + micro) * places + place) * rows + offset;
  for (std::int64_t row = 0; row < rows; ++row)
    numbers[std::size_t(row)] = static_cast<std::int32_t>(static_cast<std::uint32_t>(first + row));
}

SequenceOrder evaluation_order(const config::Config& config, int rank, int ranks) {
  const ir::Mesh mesh = config::mesh_of(config, ranks);
  return {mesh.place(rank, ir::batch_axes), mesh.size(ir::batch_axes)};
}

SequenceOrder training_order(const config::Config& config, int rank, int ranks, std::int64_t sample_offset) {
  SequenceOrder order = evaluation_order(config, rank, ranks);
  order.micro_batches = config.train.gradient_accumulation_steps;
  order.offset = sample_offset;
  return order;
}

Result<std::optional<Tokenizer>> load_tokenizer(const config::Config& config) {
  const std::string& folder = config.data.tokenizer;
  if (folder.empty() || (config.data.synthetic && config.train.sample_tokens == 0)) return std::optional<Tokenizer>();
  LANCET_ASSIGN(Tokenizer tokenizer, Tokenizer::load(folder));
  if (tokenizer.vocab_size() > config.model.vocab_size)
    return data_error(
        fmt::format("data.tokenizer: expected a vocabulary of at most model.vocab_size = {} ids in {}, found one of {}",
                    config.model.vocab_size, folder, tokenizer.vocab_size()));
  if (config.train.sample_tokens > 0)
    if (const auto prompt = tokenizer.encode(config.train.sample_prompt); !prompt.ok())
      return data_error("train.sample_prompt: " + prompt.error().message);
  return std::optional<Tokenizer>(std::move(tokenizer));
}

Result<TokenizerId> tokenizer_of_training(const config::Config& config) {
  if (config.data.synthetic || config.data.train.empty()) return TokenizerId{};
  LANCET_ASSIGN(const TokenFile file, TokenFile::open(config.data.train));
  if (file.tokenizer_hash() != 0 || config.data.tokenizer.empty())
    return TokenizerId{file.tokenizer_hash(), config.data.train};
  LANCET_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(config.data.tokenizer));
  return TokenizerId{tokenizer.hash(), config.data.tokenizer};
}

Result<std::string> fingerprint_of(std::span<const std::string> token_files) {
  std::string text;
  for (const std::string& path : token_files) {
    if (path.empty()) continue;
    LANCET_ASSIGN(const TokenFile file, TokenFile::open(path));
    text += fmt::format("{} ", file.fingerprint());
  }
  return text;
}

Result<std::unique_ptr<Batches>> training_batches(const config::Config& config, const TokenizerId& tokenizer, int rank,
                                                  int ranks, std::int64_t sample_offset) {
  const ir::Mesh mesh = config::mesh_of(config, ranks);
  const int place = mesh.place(rank, ir::batch_axes), shares = mesh.size(ir::batch_axes);
  if (config.data.synthetic) return std::unique_ptr<Batches>(std::make_unique<SyntheticBatches>(config, place, shares));
  LANCET_ASSIGN(TokenFile file, open_tokens(config, tokenizer, config.data.train));
  const std::int64_t rows = config.train.micro_batch_size * config.train.gradient_accumulation_steps * shares;
  LANCET_ASSIGN(Sampler sampler, Sampler::make(std::move(file), {.seq_len = config.train.seq_len,
                                                                 .global_batch = rows,
                                                                 .seed = static_cast<std::uint64_t>(config.train.seed),
                                                                 .offset = sample_offset}));
  return std::unique_ptr<Batches>(std::make_unique<FileBatches>(std::move(sampler), place, shares));
}

Result<std::optional<Evaluation>> evaluation_batches(const config::Config& config, const TokenizerId& tokenizer,
                                                     int rank, int ranks) {
  if (config.data.synthetic || config.data.eval.empty()) return std::optional<Evaluation>();
  LANCET_ASSIGN(TokenFile file, open_tokens(config, tokenizer, config.data.eval));
  const ir::Mesh mesh = config::mesh_of(config, ranks);
  const int place = mesh.place(rank, ir::batch_axes), shares = mesh.size(ir::batch_axes);
  const std::int64_t length = config.train.seq_len, rows = config.train.micro_batch_size * shares;
  LANCET_ASSIGN(Sampler sampler,
                Sampler::make(std::move(file), {.seq_len = length, .global_batch = 1, .shuffle = false}));
  Evaluation evaluation;
  const auto of_file = std::int64_t(sampler.windows());
  evaluation.sequences = std::min(config.data.eval_sequences, of_file);
  if (config.model.has_moe() && config.model.experts_choose()) {
    LANCET_ASSIGN(evaluation.sequences, whole_groups(config, of_file));
  }
  evaluation.count = (evaluation.sequences + rows - 1) / rows;
  evaluation.batches =
      std::make_unique<EvaluationBatches>(std::move(sampler), length, evaluation.sequences, place, shares);
  return std::optional<Evaluation>(std::move(evaluation));
}

// Sample s belongs to epoch s / windows() and is window P(s % windows()) of the file, where P is a permutation keyed by
// (seed, epoch). The permutation is a Feistel network of 8 rounds with Philox as round function, over [0, 4^h) for the
// least h >= 4 with 4^h >= n; an output of n or more is permuted again until it is below n (cycle walking), which keeps
// the map a bijection of [0, n). Windows are seq_len tokens apart and begin at an offset that a shuffled run draws for
// each epoch. So any sample is found from the seed and its number alone, without stored state.
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
  const auto all = static_cast<std::uint64_t>(options_.global_batch);
  const std::uint64_t begin =
      (static_cast<std::uint64_t>(micro_batch) * static_cast<std::uint64_t>(ranks) + static_cast<std::uint64_t>(rank)) *
      rows;
  LANCET_CHECK(micro_batch >= 0 && begin + rows <= all, "micro-batch {} of {} rows on each of {} ranks, {} rows in all",
               micro_batch, rows, ranks, all);
  const std::uint64_t first = step * all + static_cast<std::uint64_t>(options_.offset) + begin;
  for (std::size_t row = 0; row < rows; ++row) {
    const std::uint64_t at = first_token(first + row);
    LANCET_TRY(file_.read(at, inputs.subspan(row * seq_len, seq_len)));
    LANCET_TRY(file_.read(at + 1, targets.subspan(row * seq_len, seq_len)));
  }
  return {};
}

}  // namespace lancet::data
