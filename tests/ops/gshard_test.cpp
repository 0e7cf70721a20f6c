// The routers that draw: GShard's gate against algorithm 1 of its paper, written again in double, and against Lingvo's
// public code where that differs; rates of the draws; how evenly tokens are dealt out.
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "lancet/base/random.h"
#include "ops/references/harness.h"

namespace lancet::test {
namespace {

using Index = std::int64_t;

struct GateSize {
  Index batch, positions, experts, groups, capacity;
  Index tokens() const { return batch * positions; }
};

// What algorithm 1 gives a token: its experts, their weights, and whether each has a place in the expert's buffer.
struct Routed {
  std::array<Index, 2> expert;
  std::array<double, 2> weight;
  std::array<bool, 2> kept;
};

// Algorithm 1, a group of tokens after the other. counts_skipped: c_e counts second choices that are not sent, as in
// the paper; Lingvo's code removes them before it counts. random: of each token, uniform in [0, 1).
struct Algorithm1 {
  std::vector<Routed> tokens;
  std::vector<double> aux;  // of each group: (1/E) * sum of (c_e/S) m_e
};
Algorithm1 algorithm_1(const GateSize& size, const std::vector<double>& logits, const std::vector<double>& random,
                       bool counts_skipped) {
  const Index E = size.experts, S = size.tokens() / size.groups;
  Algorithm1 result;
  result.tokens.resize(std::size_t(size.tokens()));
  for (Index g = 0; g < size.groups; ++g) {
    std::vector<double> mean(static_cast<std::size_t>(E)), first(static_cast<std::size_t>(E));
    std::vector<Index> count(static_cast<std::size_t>(E));
    for (Index t = g * S; t < (g + 1) * S; ++t) {
      const double* x = logits.data() + t * E;
      double sum = 0;
      for (Index e = 0; e < E; ++e) sum += std::exp(x[e]);
      for (Index e = 0; e < E; ++e) mean[std::size_t(e)] += std::exp(x[e]) / sum / double(S);
      Index best = 0, second = -1;
      for (Index e = 1; e < E; ++e)
        if (x[e] > x[best]) best = e;
      for (Index e = 0; e < E; ++e)
        if (e != best && (second < 0 || x[e] > x[second])) second = e;
      Routed& to = result.tokens[std::size_t(t)];
      to.expert = {best, second};
      const double g1 = std::exp(x[best]) / sum, g2 = std::exp(x[second]) / sum;
      to.weight = {g1 / (g1 + g2), g2 / (g1 + g2)};
      to.kept[0] = count[std::size_t(best)]++ < size.capacity;
    }
    for (Index e = 0; e < E; ++e) first[std::size_t(e)] = double(count[std::size_t(e)]);
    double aux = 0;
    for (std::size_t e = 0; e < first.size(); ++e) aux += first[e] / double(S) * mean[e] / double(E);
    result.aux.push_back(aux);
    for (Index t = g * S; t < (g + 1) * S; ++t) {
      Routed& to = result.tokens[std::size_t(t)];
      Index& c = count[std::size_t(to.expert[1])];
      const bool sent = 2 * to.weight[1] > random[std::size_t(t)];
      to.kept[1] = sent && c < size.capacity;
      c += sent || counts_skipped;
    }
  }
  return result;
}

// A few values, so that there are many ties.
GuardedTensor coarse_logits(const GateSize& size, std::uint64_t seed) {
  GuardedTensor logits({DType::f32, {size.batch, size.positions, size.experts}});
  const Philox random(seed, 1);
  for (Index i = 0; i < logits.shape().elements(); ++i)
    logits.as<float>()[i] = float(random.below(std::uint64_t(i), 5)) * 0.5f + (i % size.experts == 1 ? 0.5f : 0.f);
  return logits;
}

GuardedTensor sequence_numbers(Index batch, std::int32_t first = 0) {
  GuardedTensor sequence({DType::i32, {batch, 1}});
  std::iota(sequence.as<std::int32_t>(), sequence.as<std::int32_t>() + batch, first);
  return sequence;
}

std::vector<GuardedTensor> results_of(const char* op, std::vector<GuardedTensor> operands,
                                      const ir::Attributes& attributes) {
  const Outcome outcome = run(ops::op(op), std::move(operands), attributes);
  CHECK(outcome.faults.empty());
  return outcome.results;
}

constexpr std::int64_t draw_seed = 77;

std::vector<GuardedTensor> chosen_of(const GuardedTensor& logits) {
  return results_of("top_k", {logits}, {{"k", 2}, {"normalize", 1}});
}
GuardedTensor drawn_of(const std::vector<GuardedTensor>& chosen, const GuardedTensor& sequence, Index experts,
                       bool keep) {
  return results_of("skip_second", {chosen[0], chosen[1], sequence},
                    {{"seed", draw_seed}, {"experts", experts}, {"keep", std::int64_t(keep)}})[0];
}

void check_gate(const GateSize& size, bool keep) {
  const GuardedTensor logits = coarse_logits(size, 5);
  const auto chosen = chosen_of(logits);
  const GuardedTensor drawn = drawn_of(chosen, sequence_numbers(size.batch), size.experts, keep);
  const auto slots = results_of("slots_by_choice", {drawn},
                                {{"capacity", size.capacity}, {"groups", size.groups}, {"experts", size.experts}});
  std::vector<double> random;
  for (Index t = 0; t < size.tokens(); ++t) {
    const Philox numbers(std::uint64_t(draw_seed), std::uint64_t(t / size.positions));
    random.push_back(double(numbers.block(std::uint64_t(t % size.positions))[0] >> 8) * 0x1p-24);
  }
  const Algorithm1 expected = algorithm_1(size, to_double(logits).values, random, keep);
  int different = 0, dropped_first = 0, dropped_second = 0;
  std::map<Index, Index> filled;  // of each expert, in token order
  for (Index t = 0; t < size.tokens(); ++t) {
    const Routed& to = expected.tokens[std::size_t(t)];
    dropped_first += !to.kept[0];
    dropped_second += !to.kept[1];
    for (std::size_t k = 0; k < 2; ++k) {
      const Index i = 2 * t + Index(k), slot = slots[0].as<std::int32_t>()[i];
      different += chosen[0].as<std::int32_t>()[i] != to.expert[k];
      different += std::abs(double(chosen[1].as<float>()[i]) - to.weight[k]) > 1e-6;
      different += slot != (to.kept[k] ? filled[to.expert[k]]++ : -1);
    }
  }
  CHECK(different == 0);
  CHECK(dropped_first > 0);
  CHECK(dropped_second > dropped_first);
  // The loss, of all groups together: each has the load of its own tokens.
  const Index of_load = size.tokens() / size.groups;
  const GuardedTensor first =
      results_of("first_choices", {chosen[0]}, {{"experts", size.experts}, {"load_tokens", of_load}})[0];
  const auto aux = results_of("aux_loss", {chosen[2], first},
                              {{"load_tokens", of_load}, {"total_tokens", size.tokens()}, {"coefficient", 1.0}});
  const double mean = std::accumulate(expected.aux.begin(), expected.aux.end(), 0.0) / double(size.groups);
  CHECK(double(aux[0].as<float>()[0]) / double(size.experts * size.experts) == Approx(mean).epsilon(1e-5));
}

// How many of n tokens are sent to their second expert, and how many are expected to be, with the variance of that.
struct Rate {
  Index sent = 0;
  double expected = 0, variance = 0;
};

}  // namespace

TEST_CASE("GShard's gate is algorithm 1 of its paper, ties included, or Lingvo's where skipped choices do not count") {
  for (const bool keep : {true, false})
    for (const GateSize& size : {GateSize{4, 64, 4, 1, 60}, {4, 64, 4, 4, 16}, {6, 35, 7, 2, 12}, {2, 200, 3, 1, 70}}) {
      INFO(size.tokens() << " tokens in " << size.groups << " groups, keep " << keep);
      check_gate(size, keep);
    }
}

TEST_CASE("the second expert is sent to at the rate of its probability, and alike in any share of the batch") {
  const GateSize size{200, 512, 8, 1, 1};
  GuardedTensor logits({DType::f32, {size.batch, size.positions, size.experts}});
  fill_normal(logits, 3, 4);
  const auto chosen = chosen_of(logits);
  const GuardedTensor drawn = drawn_of(chosen, sequence_numbers(size.batch), size.experts, true);
  std::array<Rate, 4> rates;  // by probability
  for (Index t = 0; t < size.tokens(); ++t) {
    const double p = std::min(1.0, 2 * double(chosen[1].as<float>()[2 * t + 1]));
    for (Rate* rate : {&rates[0], &rates[std::size_t(1 + std::min(2.0, 3 * p))]}) {
      rate->sent += drawn.as<std::int32_t>()[2 * t + 1] >= 0;
      rate->expected += p;
      rate->variance += p * (1 - p);
    }
  }
  for (const Rate& rate : rates) {
    INFO(rate.sent << " sent, " << rate.expected << " expected");
    CHECK(rate.variance > 100);
    CHECK(std::abs(double(rate.sent) - rate.expected) < 4 * std::sqrt(rate.variance));
  }
  // Four ranks with a quarter of the sequences each.
  std::vector<GuardedTensor> shares;
  for (Index rank = 0; rank < 4; ++rank) {
    const Index first = rank * size.tokens() / 4, last = (rank + 1) * size.tokens() / 4;
    shares.push_back(drawn_of({slice(chosen[0], 0, first, last), slice(chosen[1], 0, first, last)},
                              sequence_numbers(size.batch / 4, std::int32_t(rank * size.batch / 4)), size.experts,
                              true));
  }
  CHECK(join(shares, 0).same_bytes(drawn));
}

TEST_CASE("draws of other sequences and seeds are other draws") {
  GuardedTensor x({DType::f32, {3, 50, 8}});
  std::fill_n(x.as<float>(), x.shape().elements(), 1.f);
  std::set<float> factors;
  double sum = 0;
  for (const std::int64_t seed : {1, 2}) {
    const GuardedTensor y = results_of("jitter", {x, sequence_numbers(3)}, {{"eps", 0.5}, {"seed", seed}})[0];
    for (Index i = 0; i < y.shape().elements(); ++i) {
      const float factor = y.as<float>()[i];
      CHECK((factor >= 0.5f && factor < 1.5f));
      factors.insert(factor);
      sum += double(factor);
    }
  }
  CHECK(factors.size() > 2390);  // of 2400: nearly all are different
  CHECK(std::abs(sum / 2400 - 1) < 4 * std::sqrt(1.0 / 12 / 2400));
}

TEST_CASE("noise of bf16 is as fine as that of f32, and its gradient has the same numbers") {
  GuardedTensor x({DType::bf16, {2, 50, 16}}), dy({DType::f32, {2, 50, 16}});
  std::fill_n(x.as<bf16>(), x.shape().elements(), from_f32<bf16>(1.f));
  std::fill_n(dy.as<float>(), dy.shape().elements(), 1.f);
  const ir::Attributes attributes{{"eps", 0.01}, {"seed", draw_seed}};
  const GuardedTensor y = results_of("jitter", {x, sequence_numbers(2)}, attributes)[0];
  REQUIRE(y.type() == ir::TensorType{DType::f32, {2, 50, 16}});
  const std::set<float> factors(y.as<float>(), y.as<float>() + 1600);
  CHECK(factors.size() > 1590);  // of 1600; bf16 has 4 numbers from 0.99 to 1.01
  CHECK(*factors.begin() >= 0.99f);
  CHECK(*factors.rbegin() <= 1.01f);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    ir::Attributes of_type = attributes;
    of_type.set("dtype", std::string(name(dtype)));
    const GuardedTensor dx = results_of("jitter_dx", {dy, sequence_numbers(2)}, of_type)[0];
    REQUIRE(dx.type() == ir::TensorType{dtype, {2, 50, 16}});
    for (Index i = 0; i < 1600; ++i) {
      const float factor = y.as<float>()[i];
      CHECK((dtype == DType::f32 ? dx.as<float>()[i] : to_f32(dx.as<bf16>()[i])) ==
            (dtype == DType::f32 ? factor : to_f32(from_f32<bf16>(factor))));
    }
  }
}

TEST_CASE("a random choice deals out each sequence evenly, and no expert gets more than its share of the rest") {
  for (const auto& [positions, experts] : std::vector<std::pair<Index, Index>>{{64, 4}, {50, 8}, {3, 5}, {513, 7}}) {
    const Index batch = 400;
    const GuardedTensor expert = results_of("random_choice", {sequence_numbers(batch)},
                                            {{"experts", experts}, {"positions", positions}, {"seed", draw_seed}})[0];
    std::vector<double> more(static_cast<std::size_t>(experts)), at_first(static_cast<std::size_t>(experts));
    for (Index b = 0; b < batch; ++b) {
      std::vector<Index> counts(static_cast<std::size_t>(experts));
      for (Index s = 0; s < positions; ++s) ++counts[std::size_t(expert.as<std::int32_t>()[b * positions + s])];
      ++at_first[std::size_t(expert.as<std::int32_t>()[b * positions])];
      const auto [least, most] = std::ranges::minmax(counts);
      CHECK(most - least == (positions % experts != 0 ? 1 : 0));
      for (std::size_t e = 0; e < counts.size(); ++e) more[e] += double(counts[e] - positions / experts);
    }
    const double rest = double(positions % experts) / double(experts), share = 1 / double(experts);
    for (std::size_t e = 0; e < more.size(); ++e) {
      INFO("expert " << e << " of " << experts);
      CHECK(std::abs(more[e] - double(batch) * rest) <= 4 * std::sqrt(double(batch) * rest * (1 - rest)));
      CHECK(std::abs(at_first[e] - double(batch) * share) <= 4 * std::sqrt(double(batch) * share * (1 - share)));
    }
  }
}

TEST_CASE("a hash gives an id one expert, whatever the layout, and spreads the ids") {
  constexpr Index ids = 20000, experts = 10;
  GuardedTensor tokens({DType::i32, {1, ids}}), turned({DType::i32, {ids, 1}});
  std::iota(tokens.as<std::int32_t>(), tokens.as<std::int32_t>() + ids, 0);
  for (Index i = 0; i < ids; ++i) turned.as<std::int32_t>()[i] = std::int32_t(ids - 1 - i);
  const ir::Attributes attributes{{"experts", experts}, {"seed", draw_seed}};
  const auto found = results_of("hash_choice", {tokens}, attributes);
  const auto reversed = results_of("hash_choice", {turned}, attributes);
  const auto other = results_of("hash_choice", {tokens}, {{"experts", experts}, {"seed", draw_seed + 1}});
  std::vector<double> counts(static_cast<std::size_t>(experts));
  Index same = 0, as_other = 0;
  for (Index i = 0; i < ids; ++i) {
    const std::int32_t expert = found[0].as<std::int32_t>()[i];
    ++counts[std::size_t(expert)];
    same += expert == reversed[0].as<std::int32_t>()[ids - 1 - i];
    as_other += expert == other[0].as<std::int32_t>()[i];
  }
  CHECK(same == ids);
  CHECK(std::abs(double(as_other) - 2000) < 4 * std::sqrt(1800.0));
  for (const double count : counts) CHECK(std::abs(count - 2000) < 4 * std::sqrt(1800.0));
}

}  // namespace lancet::test
