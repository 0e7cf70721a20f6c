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

// A route of given choices, as assign_slots makes it.
struct Assigned {
  ir::RouteLayout layout;
  std::vector<std::int32_t> memory;
  std::vector<float> load;

  Assigned(std::vector<std::int32_t> experts, std::int64_t count, std::int64_t capacity,
           std::vector<std::uint64_t> order = {}, const std::int32_t* before = nullptr)
      : layout{std::int64_t(experts.size()), count},
        memory(std::size_t(layout.bytes() / 4), 77),
        load(std::size_t(2 * count), 77.f) {
    std::copy(experts.begin(), experts.end(), layout.expert(memory.data()));
    routing::assign_slots(layout, memory.data(), capacity, order, before, load.data());
  }
  std::vector<std::int32_t> slots() { return {layout.slot(memory.data()), layout.slot(memory.data()) + layout.tokens}; }
  std::vector<std::int32_t> begin() {
    return {layout.begin(memory.data()), layout.begin(memory.data()) + layout.experts};
  }
  std::vector<std::int32_t> end() { return {layout.end(memory.data()), layout.end(memory.data()) + layout.experts}; }
};

using Ints = std::vector<std::int32_t>;
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
  Assigned route({1, 0, 1, 1, 0, 1}, 3, 2);
  CHECK(route.slots() == Ints{0, 0, 1, -1, 1, -1});
  CHECK(route.begin() == Ints{0, 0, 0});
  CHECK(route.end() == Ints{2, 2, 0});
  CHECK(route.load == Floats{2, 4, 0, 2, 2, 0});
  CHECK(Assigned({0, 0, 0}, 1, 1).slots() == Ints{0, -1, -1});
}

TEST_CASE("a part continues from the part before") {
  const Ints before{2, 1, 0};
  Assigned route({1, 0, 1, 1}, 3, 2, {}, before.data());
  CHECK(route.slots() == Ints{1, -1, -1, -1});
  CHECK(route.begin() == before);
  CHECK(route.end() == Ints{2, 2, 0});
  CHECK(route.load == Floats{1, 3, 0, 0, 1, 0});
}

TEST_CASE("priority: falling probability, ties by lower token; drops follow this order") {
  const Floats weight{0.25f, 0.9f, 0.25f, 1.f, 0.9f};
  std::vector<std::uint64_t> keys(5);
  routing::prioritize(weight.data(), keys);
  Ints order;
  for (std::uint64_t key : keys) order.push_back(std::int32_t(std::uint32_t(key)));
  CHECK(order == Ints{3, 1, 4, 0, 2});
  // Priority decides which tokens are kept (the last on a tie is dropped); the kept ones get slots in token order.
  Assigned route({0, 0, 0, 1, 0}, 2, 3, keys);
  CHECK(route.slots() == Ints{0, 1, -1, 0, 2});
  CHECK(route.end() == Ints{3, 1});
  CHECK(route.load == Floats{4, 1, 3, 1});
  CHECK(Assigned({0, 0, 0, 0, 0}, 1, 2, keys).slots() == Ints{-1, 0, -1, 1, -1});

  const Floats broken{0.5f, not_a_number, 0.75f};  // NaN has a rank, so that every token is ordered
  keys.resize(3);
  routing::prioritize(broken.data(), keys);
  order.clear();
  for (std::uint64_t key : keys) order.push_back(std::int32_t(std::uint32_t(key)));
  CHECK(order == Ints{1, 2, 0});
}
