#include "lancet/data/batches.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "support.h"

namespace lancet::data::test {
namespace {

using Ids = std::vector<TokenId>;

// A file whose token i is i, so that a batch shows its source.
TokenFile counting_file(const Folder& folder, int tokens) {
  TokenWriter writer = value(TokenWriter::create(folder / "t", tokens, 0));
  Ids ids(static_cast<std::size_t>(tokens));
  std::iota(ids.begin(), ids.end(), 0);
  succeed(writer.append(ids));
  succeed(writer.finish());
  return value(TokenFile::open(folder / "t"));
}

SamplerOptions options_for(std::int64_t seq_len, std::int64_t global_batch, std::uint64_t seed = 1,
                           bool shuffle = true) {
  return {.seq_len = seq_len, .global_batch = global_batch, .seed = seed, .shuffle = shuffle};
}

// The rows of a step's global batch, micro batch by micro batch over all ranks: inputs, then targets.
std::pair<Ids, Ids> global_batch(const Sampler& sampler, std::uint64_t step, const SamplerOptions& o, int ranks,
                                 int micro_batches) {
  std::pair<Ids, Ids> all;
  const auto rows = static_cast<std::size_t>(o.global_batch / ranks / micro_batches);
  Ids inputs(rows * static_cast<std::size_t>(o.seq_len)), targets(inputs.size());
  for (int micro = 0; micro < micro_batches; ++micro) {
    for (int rank = 0; rank < ranks; ++rank) {
      succeed(sampler.batch(step, rank, ranks, micro, inputs, targets));
      all.first.insert(all.first.end(), inputs.begin(), inputs.end());
      all.second.insert(all.second.end(), targets.begin(), targets.end());
    }
  }
  return all;
}

}  // namespace

TEST_CASE("Each epoch's permutation is a bijection") {
  for (const std::uint64_t n : {1u, 2u, 3u, 15u, 16u, 17u, 255u, 256u, 257u, 1000u, 4096u, 5000u}) {
    for (std::uint64_t epoch = 0; epoch < 4; ++epoch) {
      const Permutation permutation(n, 42, epoch);
      std::vector<bool> hit(n, false);
      for (std::uint64_t i = 0; i < n; ++i) {
        const std::uint64_t to = permutation(i);
        REQUIRE(to < n);
        REQUIRE_FALSE(hit[to]);
        hit[to] = true;
      }
    }
  }
  // Large permutations stay in range and do not collide.
  const std::uint64_t n = (std::uint64_t{1} << 40) + 12345;
  const Permutation permutation(n, 1, 2);
  std::set<std::uint64_t> seen;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    REQUIRE(permutation(n - 1 - i) < n);
    seen.insert(permutation(n - 1 - i));
  }
  CHECK(seen.size() == 1000);
}

TEST_CASE("Permutations are even: every position is equally likely, neighbours are separated") {
  // Over 20000 epochs element 0 of 10 is at each position 2000 times, with a standard deviation of 42; five of them are
  // allowed.
  std::vector<int> first(10), second(10);
  for (std::uint64_t epoch = 0; epoch < 20000; ++epoch) {
    const Permutation permutation(10, 7, epoch);
    ++first[permutation(0)];
    ++second[(permutation(1) + 10 - permutation(0)) % 10];
  }
  for (const int count : first) CHECK(std::abs(count - 2000) < 212);
  CHECK(second[0] == 0);
  for (int d = 1; d < 10; ++d) CHECK(std::abs(second[std::size_t(d)] - 2222) < 224);
}

TEST_CASE("The global batch and each of its micro batches are the same at any rank count and micro-batch size") {
  const Folder folder;
  const SamplerOptions options = options_for(10, 8);
  const Sampler sampler = value(Sampler::make(counting_file(folder, 1234), options));
  CHECK(sampler.windows() == 123);
  for (const std::uint64_t step : {0u, 1u, 14u, 15u, 16u, 1000000u}) {
    const auto one = global_batch(sampler, step, options, 1, 1);
    for (std::size_t i = 0; i < one.first.size(); ++i) {
      REQUIRE(one.second[i] == one.first[i] + 1);
      REQUIRE(one.first[i] == one.first[i - i % 10] + TokenId(i % 10));
    }
    for (const int ranks : {1, 2, 4, 8}) {
      for (const int micro_batches : {1, 2, 4}) {
        if (8 % (ranks * micro_batches) == 0)
          REQUIRE(global_batch(sampler, step, options, ranks, micro_batches) == one);
      }
    }
    // Another sampler with the same seed, as after a restart, gives the same.
    CHECK(global_batch(value(Sampler::make(value(TokenFile::open(folder / "t")), options)), step, options, 1, 1) ==
          one);
  }
}

TEST_CASE("An epoch holds every window once, and steps continue into the next epoch") {
  const Folder folder;
  const SamplerOptions options = options_for(10, 8);
  const Sampler sampler = value(Sampler::make(counting_file(folder, 1234), options));
  std::vector<std::vector<TokenId>> epochs;
  Ids starts;
  for (std::uint64_t step = 0; starts.size() < 3 * 123; ++step) {
    const auto batch = global_batch(sampler, step, options, 1, 1).first;
    for (std::size_t row = 0; row < 8; ++row) starts.push_back(batch[row * 10]);
  }
  std::set<TokenId> offsets;
  for (std::size_t epoch = 0; epoch < 3; ++epoch) {
    Ids sorted(starts.begin() + std::ptrdiff_t(epoch * 123), starts.begin() + std::ptrdiff_t(epoch * 123 + 123));
    CHECK_FALSE(std::is_sorted(sorted.begin(), sorted.end()));
    epochs.push_back(sorted);
    std::sort(sorted.begin(), sorted.end());
    const TokenId offset = sorted[0];  // 1233 = 123 * 10 + 3: windows may begin at 0 to 3
    CHECK(offset >= 0);
    CHECK(offset <= 3);
    for (std::size_t i = 0; i < sorted.size(); ++i) REQUIRE(sorted[i] == offset + TokenId(i * 10));
    for (TokenId& start : epochs.back()) start -= offset;
  }
  CHECK(epochs[0] != epochs[1]);
  CHECK(epochs[1] != epochs[2]);
}

TEST_CASE("Over epochs the windows begin at every offset that fits") {
  const Folder folder;
  const SamplerOptions options = options_for(10, 1);
  const Sampler sampler = value(Sampler::make(counting_file(folder, 35), options));  // 34 = 3 * 10 + 4
  std::set<std::uint64_t> offsets;
  for (std::uint64_t epoch = 0; epoch < 60; ++epoch) offsets.insert(sampler.first_token(epoch * 3) % 10);
  CHECK(offsets == std::set<std::uint64_t>{0, 1, 2, 3, 4});
}

TEST_CASE("Seeds give different orders") {
  const Folder folder;
  const TokenFile file = counting_file(folder, 1234);
  const SamplerOptions a = options_for(10, 8, 1), b = options_for(10, 8, 2);
  CHECK(global_batch(value(Sampler::make(file, a)), 0, a, 1, 1) !=
        global_batch(value(Sampler::make(file, b)), 0, b, 1, 1));
}

TEST_CASE("Without shuffling the windows come in file order") {
  const Folder folder;
  const SamplerOptions options = options_for(4, 2, 9, false);
  const Sampler sampler = value(Sampler::make(counting_file(folder, 16), options));  // windows at 0, 4, 8
  CHECK(sampler.windows() == 3);
  CHECK(global_batch(sampler, 0, options, 2, 1).first == Ids{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(global_batch(sampler, 1, options, 1, 1) ==
        std::pair{Ids{8, 9, 10, 11, 0, 1, 2, 3}, Ids{9, 10, 11, 12, 1, 2, 3, 4}});
  CHECK(global_batch(sampler, 3, options, 1, 1).first == global_batch(sampler, 0, options, 1, 1).first);
}

TEST_CASE("A file must hold at least one window") {
  const Folder folder;
  CHECK(value(Sampler::make(counting_file(folder, 11), options_for(10, 4))).windows() == 1);
  CHECK(error_of(Sampler::make(counting_file(folder, 10), options_for(10, 4))) ==
        (folder / "t").string() + ": expected at least 11 tokens (a row of 10 and its last target), found 10");
}

}  // namespace lancet::data::test
