// The routing arithmetic alone.
#include "ops/moe/slots/assign.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/moe/sigmoid_top_k/choose.h"
#include "ops/moe/top_k/choose.h"

using namespace lancet;
using namespace lancet::ops;

namespace {

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

using Ints = std::vector<std::int32_t>;

// A part of the tokens of some groups, and the counts of the part before.
struct Part {
  std::int64_t groups = 1, parts = 1, number = 0;
  const std::int32_t* before = nullptr;
};

using ops::routing::Service;
using Floats = std::vector<float>;

// What assign_slots decides about entries of given experts, `choices` of each token. keys: the priority of the tokens.
struct Assigned {
  Ints expert, slots, counts, filled;
  std::vector<float> load;

  Assigned(Ints chosen, std::int64_t experts, std::int64_t capacity, const Part& part = {}, std::int64_t choices = 1,
           Service service = Service::by_token, const std::vector<std::uint64_t>& keys = {})
      : expert(std::move(chosen)),
        slots(expert.size(), 77),
        counts(std::size_t(part.groups * experts), 77),
        filled(std::size_t(2 * experts), 77),
        load(std::size_t(2 * experts), 77.f) {
    routing::Decision d;
    d.entries = std::int64_t(expert.size()), d.choices = choices, d.experts = experts;
    d.groups = part.groups, d.capacity = capacity;
    d.first = part.number * d.entries, d.group_entries = part.parts * d.entries / part.groups;
    d.before = part.before, d.expert = expert.data(), d.slot = slots.data(), d.counts = counts.data();
    d.filled = filled.data(), d.load = load.data();
    routing::assign_slots(d, service, keys);
  }
};

// The choices of one token, and the softmax of its logits.
struct Chosen {
  Ints expert;
  Floats scores, weight;

  Chosen(const Floats& logits, std::size_t choices, bool normalized = false)
      : expert(choices), scores(logits.size()), weight(choices) {
    const auto experts = std::int64_t(logits.size());
    routing::choose(logits.data(), scores.data(), experts, std::int64_t(choices), expert.data());
    routing::softmax(logits.data(), expert[0], scores.data(), experts);
    routing::weigh(scores.data(), expert.data(), std::int64_t(choices), normalized, weight.data());
  }
};

std::vector<std::uint64_t> sorted_keys(const Floats& weight, std::int64_t choices = 1) {
  std::vector<std::uint64_t> keys(weight.size() / std::size_t(choices));
  routing::prioritize(weight.data(), choices, keys);
  return keys;
}
Ints tokens_of(const std::vector<std::uint64_t>& keys) {
  Ints order;
  for (std::uint64_t key : keys) order.push_back(std::int32_t(std::uint32_t(key)));
  return order;
}

}  // namespace

TEST_CASE("a token's experts by falling logit, and the softmax") {
  const Floats logits{1.f, 3.f, 2.f};
  const Chosen all(logits, 3);
  CHECK(all.expert == Ints{1, 2, 0});
  const double sum = std::exp(1.0) + std::exp(3.0) + std::exp(2.0);
  for (std::size_t e = 0; e < 3; ++e) CHECK(all.scores[e] == Approx(std::exp(double(logits[e])) / sum).epsilon(1e-6));
  CHECK(all.weight == Floats{all.scores[1], all.scores[2], all.scores[0]});

  const Chosen equal({2.f, 5.f, 5.f}, 2);
  CHECK(equal.expert == Ints{1, 2});  // the lower expert first
  CHECK(equal.scores[1] == equal.scores[2]);
  CHECK(Chosen({0.f, -0.f, 0.f}, 3).expert == Ints{0, 1, 2});
  const Chosen large({1000.f, -1000.f, 999.f}, 1);
  CHECK(large.expert == Ints{0});
  CHECK(large.scores[0] == Approx(1 / (1 + std::exp(-1.0))));
  CHECK(large.scores[1] == 0.f);
  const Chosen one({-7.f}, 1);
  CHECK(one.expert == Ints{0});
  CHECK(one.weight == Floats{1.f});
}

TEST_CASE("normalised weights are the softmax over the chosen logits") {
  const Floats logits{1.f, 3.f, -2.f, 2.f};
  const Chosen two(logits, 2, true);
  CHECK(two.weight[0] == Approx(std::exp(3.0) / (std::exp(3.0) + std::exp(2.0))).epsilon(1e-6));
  CHECK(two.weight[1] == Approx(std::exp(2.0) / (std::exp(3.0) + std::exp(2.0))).epsilon(1e-6));
  CHECK(two.scores == Chosen(logits, 2).scores);
  CHECK(Chosen(logits, 1, true).weight == Floats{1.f});
}

TEST_CASE("a row of logits with NaN still gives different experts") {
  CHECK(Chosen({not_a_number, 1.f, 2.f}, 3).expert == Ints{0, 2, 1});
  CHECK(Chosen({1.f, not_a_number, 2.f}, 3).expert == Ints{2, 0, 1});
  CHECK(Chosen({not_a_number, not_a_number, not_a_number}, 3).expert == Ints{0, 1, 2});
  const float low = -std::numeric_limits<float>::infinity();
  CHECK(Chosen({low, not_a_number, low}, 3).expert == Ints{0, 1, 2});
}

TEST_CASE("the gradient of a choice against finite differences") {
  const std::vector<double> logits{0.3, -1.1, 0.8, 0.1};
  const Floats shared{0.5f, -2.f, 1.f, 0.25f}, dweight{1.75f, -0.5f, 0.25f};
  for (const std::size_t choices : {1, 2, 3})
    for (const bool normalized : {false, true})
      for (const bool with_shared : {false, true}) {
        const Chosen chosen(Floats(logits.begin(), logits.end()), choices, normalized);
        auto objective = [&](const std::vector<double>& x) {
          double sum = 0, of_chosen = 0, total = 0;
          for (double v : x) sum += std::exp(v);
          for (const std::int32_t e : chosen.expert) of_chosen += std::exp(x[std::size_t(e)]);
          for (std::size_t k = 0; k < choices; ++k)
            total += double(dweight[k]) * std::exp(x[std::size_t(chosen.expert[k])]) / (normalized ? of_chosen : sum);
          for (std::size_t e = 0; e < 4 && with_shared; ++e) total += double(shared[e]) * std::exp(x[e]) / sum;
          return total;
        };
        Floats d(4);
        routing::softmax_backward(chosen.scores.data(),
                                  routing::chosen_gradient(chosen.expert.data(), dweight.data(), std::int64_t(choices),
                                                           normalized, chosen.scores.data()),
                                  with_shared ? shared.data() : nullptr, d.data(), 4);
        for (std::size_t e = 0; e < 4; ++e) {
          auto up = logits, down = logits;
          up[e] += 1e-5;
          down[e] -= 1e-5;
          CHECK(d[e] == Approx((objective(up) - objective(down)) / 2e-5).margin(1e-6));
        }
      }
}

TEST_CASE("the weight of an only choice that is its own sum has no gradient at all") {
  for (const float dweight : {1.75f, -0.3f, 1e-3f})
    for (int tenths = 0; tenths < 40; ++tenths) {
      const Floats logits{float(tenths) / 10, -1.1f, 0.8f, 0.3f};
      const Chosen one(logits, 1, true);
      Floats of_softmax(4, 77.f), of_sigmoid(4, 77.f);
      routing::softmax_backward(one.scores.data(),
                                routing::chosen_gradient(one.expert.data(), &dweight, 1, true, one.scores.data()),
                                nullptr, of_softmax.data(), 4);
      CHECK(of_softmax == Floats(4));
      routing::sigmoid_backward(routing::chosen_sigmoids(one.expert.data(), &dweight, 1, true, 1.5f, logits.data()),
                                logits.data(), nullptr, of_sigmoid.data(), 4);
      CHECK(of_sigmoid == Floats(4));
    }
}

TEST_CASE("slots are given in order until the capacity is used up") {
  const Assigned made({1, 0, 1, 1, 0, 1}, 3, 2);
  CHECK(made.slots == Ints{0, 0, 1, -1, 1, -1});
  CHECK(made.counts == Ints{2, 2, 0});
  CHECK(made.filled == Ints{0, 2, 0, 2, 0, 0});
  CHECK(made.load == Floats{2, 4, 0, 2, 2, 0});
  CHECK(Assigned({0, 0, 0}, 1, 1).slots == Ints{0, -1, -1});
}

TEST_CASE("a part continues from the part before") {
  const Ints before{2, 1, 0};
  const Assigned made({1, 0, 1, 1}, 3, 2, {.before = before.data()});
  CHECK(made.slots == Ints{1, -1, -1, -1});
  CHECK(made.counts == Ints{2, 2, 0});
  CHECK(made.filled == Ints{2, 2, 1, 2, 0, 0});
  CHECK(made.load == Floats{1, 3, 0, 0, 1, 0});
}

TEST_CASE("each group of tokens has a capacity of its own, and slots follow one another") {
  const Ints chosen{1, 0, 1, 1, 0, 0, 1, 1};
  const Assigned made(chosen, 2, 1, {.groups = 2});
  CHECK(made.slots == Ints{0, 0, -1, -1, 1, -1, 1, -1});
  CHECK(made.counts == Ints{1, 1, 1, 1});
  CHECK(made.filled == Ints{0, 2, 0, 2});
  CHECK(made.load == Floats{3, 5, 2, 2});
  // Two groups in four parts: the second part continues the first group.
  Ints slots;
  Assigned last({}, 2, 1);
  for (std::int64_t p = 0; p < 4; ++p) {
    const Ints before = last.counts;
    last = Assigned({chosen[std::size_t(2 * p)], chosen[std::size_t(2 * p + 1)]}, 2, 1,
                    {.groups = 2, .parts = 4, .number = p, .before = p > 0 ? before.data() : nullptr});
    slots.insert(slots.end(), last.slots.begin(), last.slots.end());
  }
  CHECK(slots == made.slots);
  CHECK(last.counts == made.counts);
}

TEST_CASE("several choices: token after token, or all first choices before the second ones") {
  // Tokens choose the experts 0 1 | 1 0 | 0 2 | 1 2.
  const Ints chosen{0, 1, 1, 0, 0, 2, 1, 2};
  const Assigned by_token(chosen, 3, 2, {}, 2);
  CHECK(by_token.slots == Ints{0, 0, 1, 1, -1, 0, -1, 1});
  CHECK(by_token.filled == Ints{0, 2, 0, 2, 0, 2});
  CHECK(by_token.load == Floats{3, 3, 2, 2, 2, 2});
  const Assigned by_choice(chosen, 3, 2, {}, 2, Service::by_choice);
  CHECK(by_choice.slots == Ints{0, -1, 0, -1, 1, 0, 1, 1});  // in token order, whenever they were served
  CHECK(by_choice.counts == Ints{2, 2, 2});
  CHECK(by_choice.load == by_token.load);
  const Ints second{1, 0, 0, 1};  // a first choice that is served first has the later slot
  CHECK(Assigned(second, 2, 2, {}, 2, Service::by_choice).slots == Ints{0, 0, 1, 1});
  // Two groups: each serves its own first choices first.
  const Assigned groups({0, 1, 1, 0, 0, 1, 1, 0}, 2, 1, {.groups = 2}, 2, Service::by_choice);
  CHECK(groups.slots == Ints{0, -1, 0, -1, 1, -1, 1, -1});
}

TEST_CASE("priority: falling weight of the first choice, ties by lower token; drops follow this order") {
  const std::vector<std::uint64_t> keys = sorted_keys({0.25f, 0.9f, 0.25f, 1.f, 0.9f});
  CHECK(tokens_of(keys) == Ints{3, 1, 4, 0, 2});
  // Priority decides which tokens are kept (the last on a tie is dropped); the kept ones get slots in token order.
  const Assigned made({0, 0, 0, 1, 0}, 2, 3, {}, 1, Service::by_choice, keys);
  CHECK(made.slots == Ints{0, 1, -1, 0, 2});
  CHECK(made.filled == Ints{0, 3, 0, 1});
  CHECK(made.load == Floats{4, 1, 3, 1});
  CHECK(Assigned({0, 0, 0, 0, 0}, 1, 2, {}, 1, Service::by_choice, keys).slots == Ints{-1, 0, -1, 1, -1});
  // NaN has a rank, so that every token is ordered.
  CHECK(tokens_of(sorted_keys({0.5f, not_a_number, 0.75f})) == Ints{1, 2, 0});
  // Two choices: the second ones are served after all first ones, and in the order of the first ones' weights.
  const std::vector<std::uint64_t> two = sorted_keys({0.4f, 0.3f, 0.5f, 0.1f, 0.6f, 0.2f}, 2);
  CHECK(tokens_of(two) == Ints{2, 1, 0});
  const Assigned chosen({0, 1, 1, 0, 2, 0}, 3, 2, {}, 2, Service::by_choice, two);
  CHECK(chosen.slots == Ints{0, 0, 1, -1, 0, 1});
}

namespace {

Ints sigmoid_choices(Floats scores, const routing::SigmoidChoice& of, std::int64_t choices) {
  routing::SigmoidChoice choice = of;
  choice.experts = std::int64_t(scores.size());
  choice.choices = choices;
  Ints expert(static_cast<std::size_t>(choices));
  routing::choose_sigmoid(choice, scores.data(), expert.data());
  return expert;
}

}  // namespace

TEST_CASE("sigmoid scores: choices by score and bias, of the best groups alone, ties by the lower number") {
  const Floats scores{0.5f, 0.1f, 0.4f, 0.4f, 0.9f, 0.f, 0.3f, 0.3f};
  CHECK(sigmoid_choices(scores, {}, 3) == Ints{4, 0, 2});
  const Floats bias{0, 1, 0, 0, -1, 0, 0, 0};
  CHECK(sigmoid_choices(scores, {.bias = bias.data()}, 3) == Ints{1, 0, 2});
  // The sums of the groups' best two are 0.6, 0.8, 0.9 and 0.6: with two groups, expert 0 is out of reach.
  CHECK(sigmoid_choices(scores, {.groups = 4, .open = 2}, 4) == Ints{4, 2, 3, 5});
  CHECK(sigmoid_choices(scores, {.groups = 4, .open = 3}, 3) == Ints{4, 0, 2});  // groups 0 and 3 are equal
  // One group in two halves: 0.5 + 0.4 and 0.9 + 0.3.
  CHECK(sigmoid_choices(scores, {.groups = 2, .open = 1}, 4) == Ints{4, 6, 7, 5});
  CHECK(sigmoid_choices(scores, {.groups = 8, .open = 2}, 2) == Ints{4, 0});  // groups of one expert
}

TEST_CASE("sigmoid scores with NaN still give different experts of the open groups") {
  const Floats scores{0.5f, not_a_number, 0.1f, 0.2f};
  CHECK(sigmoid_choices(scores, {}, 4) == Ints{0, 3, 2, 1});
  CHECK(sigmoid_choices({not_a_number, 0.5f, 0.1f, 0.2f}, {.groups = 2, .open = 1}, 2) == Ints{0, 1});
  CHECK(sigmoid_choices(scores, {.groups = 2, .open = 2}, 4) == Ints{0, 3, 2, 1});
  CHECK(sigmoid_choices(Floats(4, not_a_number), {.groups = 2, .open = 1}, 2) == Ints{0, 1});
}

namespace {

// What two experts choose of tokens with weights [T,2].
struct TokensOfTwo {
  Ints slots, counts, filled;
  Floats load;

  TokensOfTwo(const Floats& weight, std::int64_t capacity, std::int64_t groups = 1)
      : slots(weight.size(), 77), counts(std::size_t(2 * groups), 77), filled(4, 77), load(4, 77.f) {
    routing::Decision d;
    d.entries = std::int64_t(weight.size()), d.choices = d.experts = 2, d.groups = groups, d.capacity = capacity;
    d.group_entries = d.entries / groups;
    d.slot = slots.data(), d.counts = counts.data(), d.filled = filled.data(), d.load = load.data();
    std::vector<std::uint64_t> keys(weight.size() / 2 / std::size_t(groups));
    for (std::int64_t e : {0, 1}) routing::choose_tokens(d, weight.data(), e, keys);
  }
};

}  // namespace

TEST_CASE("experts take the tokens with their largest weights, and count as chosen what they keep") {
  // Equal weights are taken in token order.
  const Floats weight{0.9f, 0.1f, 0.4f, 0.6f, 0.4f, 0.6f, 0.7f, 0.3f};
  const TokensOfTwo made(weight, 2);
  CHECK(made.slots == Ints{0, -1, -1, 0, -1, 1, 1, -1});
  CHECK(made.counts == Ints{2, 2});
  CHECK(made.filled == Ints{0, 2, 0, 2});
  CHECK(made.load == Floats{2, 2, 2, 2});
  CHECK(TokensOfTwo(weight, 3).slots == Ints{0, -1, 1, 0, -1, 1, 2, 2});
  const TokensOfTwo groups(weight, 1, 2);
  CHECK(groups.slots == Ints{0, -1, -1, 0, -1, 1, 1, -1});
  CHECK(groups.counts == Ints{1, 1, 1, 1});
  const TokensOfTwo all(weight, 7);
  CHECK(all.slots == Ints{0, 0, 1, 1, 2, 2, 3, 3});
  CHECK(all.load == Floats{4, 4, 4, 4});
  // NaN has a rank, so that as many tokens are kept.
  CHECK(TokensOfTwo({0.5f, 0, not_a_number, 0, 0.75f, 0, 0.6f, 0}, 2).slots == Ints{-1, 0, 0, 1, 1, -1, -1, -1});
}
