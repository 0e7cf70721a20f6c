// The references of the ops that draw random numbers. The numbers themselves are those of base/random.h, where a test
// of its own compares them with published ones.
#include <map>

#include "lancet/base/random.h"
#include "ops/references/reference_ops.h"

namespace lancet::test {
namespace {

using Index = std::int64_t;

// The numbers of a sequence, of which operand `operand` has the number in the run.
Philox numbers_of(const ReferenceCall& c, std::size_t operand, Index sequence) {
  return {std::uint64_t(c.attributes.integer("seed")),
          std::uint64_t(std::uint32_t(std::int32_t(c.operands[operand][sequence])))};
}

void jitter(ReferenceCall& c) {  // x or dy [B,S,D], sequence
  const Index B = c.operands[0].shape()[0], N = c.operands[0].shape().elements() / B;
  const double eps = c.attributes.real("eps");
  for (Index b = 0; b < B; ++b)
    for (Index i = 0; i < N; ++i) {
      const double u = double(numbers_of(c, 1, b).uniform(std::uint64_t(i)));
      c.results[0][b * N + i] = c.operands[0][b * N + i] * (1 + eps * (2 * u - 1));
    }
}

void skip_second(ReferenceCall& c) {  // expert [T,2], weight [T,2], sequence
  const auto& expert = c.operands[0];
  const Index T = expert.shape()[0], S = T / c.operands[2].shape()[0];
  const bool keep = c.attributes.integer("keep") != 0;
  for (Index t = 0; t < T; ++t) {
    const double u = double(numbers_of(c, 2, t / S).block(std::uint64_t(t % S))[0] >> 8) / double(1 << 24);
    const double skipped = keep ? -1 - expert[2 * t + 1] : -1 - double(c.attributes.integer("experts"));
    c.results[0][2 * t] = expert[2 * t];
    c.results[0][2 * t + 1] = 2 * c.operands[1][2 * t + 1] > u ? expert[2 * t + 1] : skipped;
  }
}

void first_choices(ReferenceCall& c) {  // expert [T,K]
  const auto& expert = c.operands[0];
  const Index T = expert.shape()[0], K = expert.shape()[1], E = c.results[0].shape()[1];
  std::fill(c.results[0].values.begin(), c.results[0].values.end(), 0.0);
  for (Index t = 0; t < T; ++t)
    for (Index k = 0; k < K; ++k) {
      const Index load = t / c.attributes.integer("load_tokens", T);
      c.results[0][(2 * load + (k > 0 ? 1 : 0)) * E + Index(expert[t * K + k])] += 1;
    }
}

// The share of the range of 32-bit words in which a word is.
Index share_of(std::uint32_t word, Index shares) { return Index(double(word) / 4294967296.0 * double(shares)); }

void hash_choice(ReferenceCall& c) {  // tokens [B,S]
  const Philox random(std::uint64_t(c.attributes.integer("seed")), 0);
  for (Index t = 0; t < c.operands[0].shape().elements(); ++t) {
    c.results[0][t] =
        double(share_of(random.block(std::uint64_t(c.operands[0][t]))[0], c.attributes.integer("experts")));
    c.results[1][t] = 1;
  }
}

// Eight rounds, each of which replaces (left, right) by (right, left xor number of the round and of right).
Index feistel(const Philox& random, Index half, Index i) {
  Index left = i / half, right = i % half;
  for (Index round = 0; round < 8; ++round) {
    const Index number = Index(random.block(std::uint64_t(round) << 32 | std::uint64_t(right))[0]) % half;
    const Index mixed = left ^ number;
    left = right;
    right = mixed;
  }
  return left * half + right;
}

void random_choice(ReferenceCall& c) {  // sequence
  const Index S = c.attributes.integer("positions"), E = c.attributes.integer("experts");
  Index half = 16;
  while (half * half < S) half *= 2;
  for (Index b = 0; b < c.operands[0].shape()[0]; ++b) {
    const Philox random = numbers_of(c, 0, b);
    const Index first = share_of(random.block(~std::uint64_t{0})[0], E);
    for (Index s = 0; s < S; ++s) {
      Index place = feistel(random, half, s);
      while (place >= S) place = feistel(random, half, place);
      c.results[0][b * S + s] = double((place + first) % E);
      c.results[1][b * S + s] = 1;
    }
  }
}

}  // namespace

void add_draw_references(std::map<std::string_view, Reference>& table) {
  table.insert({{"first_choices", first_choices},
                {"hash_choice", hash_choice},
                {"jitter", jitter},
                {"jitter_dx", jitter},
                {"random_choice", random_choice},
                {"skip_second", skip_second}});
}

}  // namespace lancet::test
