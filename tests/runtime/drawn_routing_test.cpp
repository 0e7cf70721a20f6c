// The experts that tokens of an emulated device choose.
#include "runtime/drawn_routing.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "good.h"
#include "temporary_folder.h"

namespace lancet::runtime {
namespace {

using cost::RoutedModel;

const RoutedModel model{.blocks = {1, 3}, .experts = 4, .ranks = 2, .slots = 4, .seed = 5};

std::shared_ptr<const cost::Loads> loads_of(const std::string& text, const RoutedModel& of = model) {
  return std::make_shared<const cost::Loads>(*test::good(cost::Loads::read("emulated.routing", text, of)));
}
DrawnRouting routing_of(const std::string& text, const RoutedModel& of = model) {
  return DrawnRouting(loads_of(text, of));
}

// The experts with the highest scores of `tokens` tokens from `first` on.
std::vector<int> chosen(const DrawnRouting& routing, int layer, int pass, int rank, int first, int tokens) {
  std::vector<float> scores(std::size_t(tokens) * 4, -1);
  routing.draw(layer, pass, rank, first, scores);
  std::vector<int> experts;
  for (auto row = scores.begin(); row != scores.end(); row += 4) {
    CHECK(std::count(row, row + 4, 0.f) == 3);
    experts.push_back(int(std::max_element(row, row + 4) - row));
  }
  return experts;
}

std::vector<int> counts(const std::vector<int>& experts) {
  std::vector<int> result(4);
  for (const int expert : experts) ++result[std::size_t(expert)];
  return result;
}

TEST_CASE("even routing gives each expert the same number of tokens") {
  const DrawnRouting routing = routing_of("even");
  CHECK(chosen(routing, 1, 3, 1, 2, 6) == std::vector<int>{2, 3, 0, 1, 2, 3});
}

TEST_CASE("a part draws what the whole micro batch draws, and a seed what it drew before") {
  const DrawnRouting routing = routing_of("zipf:1");
  const std::vector<int> whole = chosen(routing, 1, 0, 0, 0, 40);
  std::vector<int> parts = chosen(routing, 1, 0, 0, 0, 20);
  const std::vector<int> second = chosen(routing, 1, 0, 0, 20, 20);
  parts.insert(parts.end(), second.begin(), second.end());
  CHECK(parts == whole);
  CHECK(chosen(routing_of("zipf:1"), 1, 0, 0, 0, 40) == whole);
  CHECK(chosen(routing, 1, 1, 0, 0, 40) != whole);  // the next micro batch
  CHECK(chosen(routing, 1, 0, 1, 0, 40) != whole);  // another rank
  RoutedModel other = model;
  other.seed = 6;
  CHECK(chosen(routing_of("zipf:1", other), 1, 0, 0, 0, 40) != whole);
}

TEST_CASE("several experts of a token are different, each the first as often as the others of the token") {
  for (const char* text : {"even", "zipf:1"}) {
    RoutedModel several = model;
    several.choices = 3;
    const DrawnRouting routing = routing_of(text, several);
    std::vector<float> scores(std::size_t{12000} * 4);
    routing.draw(0, 0, 0, 0, scores);
    std::vector<int> firsts(4), all(4);
    for (std::size_t t = 0; t < 12000; ++t) {
      const auto row = scores.begin() + std::ptrdiff_t(4 * t);
      CHECK(std::count(row, row + 4, 0.f) == 1);
      ++firsts[std::size_t(std::max_element(row, row + 4) - row)];
      for (std::size_t e = 0; e < 4; ++e) all[e] += row[std::ptrdiff_t(e)] > 0;
    }
    if (text == std::string("even")) CHECK(firsts == std::vector<int>(4, 3000));
    for (std::size_t e = 0; e < 4; ++e) CHECK(std::abs(3 * firsts[e] - all[e]) < 500);  // five standard deviations
  }
}

// The shares of `tokens` tokens that chose each expert among their choices.
std::vector<double> shares_drawn(const DrawnRouting& routing, std::size_t tokens) {
  std::vector<float> scores(tokens * 4);
  routing.draw(0, 0, 0, 0, scores);
  std::vector<double> shares(4);
  for (std::size_t i = 0; i < scores.size(); ++i) shares[i % 4] += (scores[i] > 0) / double(tokens);
  return shares;
}

TEST_CASE("with several choices a trace's counts are drawn, and the expected loads are those that are drawn") {
  const test::TemporaryFolder folder;
  RoutedModel several = model;
  several.blocks = {0};
  several.choices = 2;
  const std::string file = folder.write("metrics.jsonl", R"({"step": 1, "layer_expert_tokens": [[6, 5, 3, 2]]})");
  const std::vector<double> drawn = shares_drawn(routing_of("trace:" + file, several), 40000);
  const double recorded[] = {0.75, 0.625, 0.375, 0.25};  // of 8 tokens with 2 choices each
  for (std::size_t e = 0; e < 4; ++e) CHECK(drawn[e] == Approx(recorded[e]).margin(0.015));

  const std::string one = folder.write("one.jsonl", R"({"step": 1, "layer_expert_tokens": [[0, 8, 0, 0]]})");
  const std::vector<double> beside = shares_drawn(routing_of("trace:" + one, several), 9000);
  CHECK(beside[1] == Approx(1));
  for (const std::size_t e : {0, 2, 3}) CHECK(beside[e] == Approx(1. / 3).margin(0.025));

  const std::vector<double> popular = shares_drawn(routing_of("zipf:1", several), 40000);  // an even share is 0.5
  CHECK(loads_of("zipf:1", several)->mean().first.fullest ==
        Approx(std::max(popular[0] + popular[1], popular[2] + popular[3])).epsilon(0.02));
  double kept = 0;
  for (const double share : popular) kept += std::min(share, 0.5) / 2;
  several.slots = 1;
  CHECK(loads_of("zipf:1", several)->mean().first.kept == Approx(kept).epsilon(0.02));
}

TEST_CASE("the popularity of experts follows Zipf's law, in another order in each layer") {
  const DrawnRouting routing =
      routing_of("zipf:1", {.blocks = {0, 1, 2, 3, 4, 5, 6, 7}, .experts = 4, .ranks = 2, .seed = 1});
  constexpr int tokens = 1 << 14;
  std::vector<std::vector<int>> orders;
  for (int layer = 0; layer < 8; ++layer) {
    std::vector<int> tokens_of = counts(chosen(routing, layer, 0, 0, 0, tokens));
    orders.push_back(tokens_of);
    std::sort(tokens_of.rbegin(), tokens_of.rend());
    // 1, 1/2, 1/3, 1/4 of 25/12, within five standard deviations of at most 64 tokens
    for (int i = 0; i < 4; ++i) CHECK(std::abs(tokens_of[std::size_t(i)] - tokens * 12 / 25 / (i + 1)) < 320);
  }
  const auto fullest = [](const std::vector<int>& of) { return std::max_element(of.begin(), of.end()) - of.begin(); };
  CHECK(std::any_of(orders.begin(), orders.end(), [&](const auto& of) { return fullest(of) != fullest(orders[0]); }));
}

TEST_CASE("a trace repeats the recorded shares of each layer and step") {
  const test::TemporaryFolder folder;
  const std::string file =
      folder.write("metrics.jsonl", R"({"step": 1, "layer_expert_tokens": [[4, 2, 1, 1], [0, 8, 0, 0]]})"
                                    "\n{\"step\": 1, \"held_out_loss\": 3}\n"
                                    R"({"step": 2, "layer_expert_tokens": [[0, 0, 0, 8], [2, 2, 2, 2]]})"
                                    "\n");
  const DrawnRouting routing = routing_of("trace:" + file);
  CHECK(counts(chosen(routing, 1, 0, 0, 0, 50)) == std::vector<int>{0, 50, 0, 0});
  CHECK(counts(chosen(routing, 0, 1, 0, 0, 50)) == std::vector<int>{0, 0, 0, 50});
  CHECK(counts(chosen(routing, 1, 2, 0, 0, 50)) == std::vector<int>{0, 50, 0, 0});  // from the start again
  const DrawnRouting of_two =
      routing_of("trace:" + file, {.blocks = {0, 1}, .experts = 4, .ranks = 2, .micro_batches = 2});
  CHECK(counts(chosen(of_two, 1, 1, 0, 0, 50)) == std::vector<int>{0, 50, 0, 0});  // the first step's second batch
  CHECK(counts(chosen(of_two, 0, 2, 0, 0, 50)) == std::vector<int>{0, 0, 0, 50});
}

}  // namespace
}  // namespace lancet::runtime
