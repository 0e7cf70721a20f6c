// The routing arithmetic alone.
#include "ops/gate/routing.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

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

// What assign_slots decides about tokens of given choices.
struct Assigned {
  Ints expert, slots, counts, filled;
  std::vector<float> load;

  Assigned(Ints chosen, std::int64_t experts, std::int64_t capacity, const std::vector<std::uint64_t>& order = {},
           const Part& part = {})
      : expert(std::move(chosen)),
        slots(expert.size(), 77),
        counts(std::size_t(part.groups * experts), 77),
        filled(std::size_t(2 * experts), 77),
        load(std::size_t(2 * experts), 77.f) {
    routing::Decision d;
    d.tokens = std::int64_t(expert.size()), d.experts = experts, d.groups = part.groups, d.capacity = capacity;
    d.first = part.number * d.tokens, d.group_tokens = part.parts * d.tokens / part.groups;
    d.before = part.before, d.expert = expert.data(), d.slot = slots.data(), d.counts = counts.data();
    d.filled = filled.data(), d.load = load.data();
    routing::assign_slots(d, order);
  }
};

using Floats = std::vector<float>;

}  // namespace

TEST_CASE("softmax of a row and its choice of expert") {
  Floats p(3);
  const Floats logits{1.f, 3.f, 2.f};
  CHECK(routing::softmax(logits.data(), p.data(), 3) == 1);
  const double sum = std::exp(1.0) + std::exp(3.0) + std::exp(2.0);
  for (std::size_t e = 0; e < 3; ++e) CHECK(p[e] == Approx(std::exp(double(logits[e])) / sum).epsilon(1e-6));

  const Floats equal{2.f, 5.f, 5.f};
  CHECK(routing::softmax(equal.data(), p.data(), 3) == 1);  // the lowest index on a tie
  CHECK(p[1] == p[2]);
  const Floats large{1000.f, -1000.f, 999.f};
  CHECK(routing::softmax(large.data(), p.data(), 3) == 0);
  CHECK(p[0] == Approx(1 / (1 + std::exp(-1.0))));
  CHECK(p[1] == 0.f);
  const float one = -7.f;
  CHECK(routing::softmax(&one, p.data(), 1) == 0);
  CHECK(p[0] == 1.f);
}

TEST_CASE("a row of logits with NaN still gives an expert") {
  Floats p(3);
  const Floats first{not_a_number, 1.f, 2.f}, later{1.f, not_a_number, 2.f},
      all{not_a_number, not_a_number, not_a_number};
  CHECK(routing::softmax(first.data(), p.data(), 3) == 0);
  CHECK(routing::softmax(later.data(), p.data(), 3) == 2);
  CHECK(routing::softmax(all.data(), p.data(), 3) == 0);
}

TEST_CASE("softmax backward against finite differences") {
  const std::vector<double> logits{0.3, -1.1, 0.8, 0.1};
  const Floats shared{0.5f, -2.f, 1.f, 0.25f};
  const float dweight = 1.75f;
  auto objective = [&](std::vector<double> x, bool with_shared) {
    double sum = 0, total = 0;
    for (double v : x) sum += std::exp(v);
    for (std::size_t e = 0; e < x.size(); ++e)
      total += std::exp(x[e]) / sum * ((with_shared ? double(shared[e]) : 0) + (e == 2 ? double(dweight) : 0));
    return total;
  };
  Floats in(logits.begin(), logits.end()), p(4), d(4);
  REQUIRE(routing::softmax(in.data(), p.data(), 4) == 2);
  for (bool with_shared : {false, true}) {
    routing::softmax_backward(p.data(), 2, dweight, with_shared ? shared.data() : nullptr, d.data(), 4);
    for (std::size_t e = 0; e < 4; ++e) {
      auto up = logits, down = logits;
      up[e] += 1e-5;
      down[e] -= 1e-5;
      CHECK(d[e] == Approx((objective(up, with_shared) - objective(down, with_shared)) / 2e-5).margin(1e-6));
    }
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
  const Assigned made({1, 0, 1, 1}, 3, 2, {}, {.before = before.data()});
  CHECK(made.slots == Ints{1, -1, -1, -1});
  CHECK(made.counts == Ints{2, 2, 0});
  CHECK(made.filled == Ints{2, 2, 1, 2, 0, 0});
  CHECK(made.load == Floats{1, 3, 0, 0, 1, 0});
}

TEST_CASE("each group of tokens has a capacity of its own, and slots follow one another") {
  const Ints chosen{1, 0, 1, 1, 0, 0, 1, 1};
  const Assigned made(chosen, 2, 1, {}, {.groups = 2});
  CHECK(made.slots == Ints{0, 0, -1, -1, 1, -1, 1, -1});
  CHECK(made.counts == Ints{1, 1, 1, 1});
  CHECK(made.filled == Ints{0, 2, 0, 2});
  CHECK(made.load == Floats{3, 5, 2, 2});
  // Two groups in four parts: the second part continues the first group.
  Ints slots;
  Assigned last({}, 2, 1);
  for (std::int64_t p = 0; p < 4; ++p) {
    const Ints before = last.counts;
    last = Assigned({chosen[std::size_t(2 * p)], chosen[std::size_t(2 * p + 1)]}, 2, 1, {},
                    {.groups = 2, .parts = 4, .number = p, .before = p > 0 ? before.data() : nullptr});
    slots.insert(slots.end(), last.slots.begin(), last.slots.end());
  }
  CHECK(slots == made.slots);
  CHECK(last.counts == made.counts);
}

TEST_CASE("priority: falling probability, ties by lower token; drops follow this order") {
  const Floats weight{0.25f, 0.9f, 0.25f, 1.f, 0.9f};
  std::vector<std::uint64_t> keys(5);
  routing::prioritize(weight.data(), keys);
  Ints order;
  for (std::uint64_t key : keys) order.push_back(std::int32_t(std::uint32_t(key)));
  CHECK(order == Ints{3, 1, 4, 0, 2});
  // Priority decides which tokens are kept (the last on a tie is dropped); the kept ones get slots in token order.
  const Assigned made({0, 0, 0, 1, 0}, 2, 3, keys);
  CHECK(made.slots == Ints{0, 1, -1, 0, 2});
  CHECK(made.filled == Ints{0, 3, 0, 1});
  CHECK(made.load == Floats{4, 1, 3, 1});
  CHECK(Assigned({0, 0, 0, 0, 0}, 1, 2, keys).slots == Ints{-1, 0, -1, 1, -1});

  const Floats broken{0.5f, not_a_number, 0.75f};  // NaN has a rank, so that every token is ordered
  keys.resize(3);
  routing::prioritize(broken.data(), keys);
  order.clear();
  for (std::uint64_t key : keys) order.push_back(std::int32_t(std::uint32_t(key)));
  CHECK(order == Ints{1, 2, 0});
}
