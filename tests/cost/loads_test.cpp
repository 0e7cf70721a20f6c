// What ranks do under recorded and stated loads of the experts.
#include "lancet/cost/loads.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

#include "good.h"
#include "temporary_folder.h"

namespace lancet::cost {
namespace {

const RoutedModel model{.blocks = {1, 3}, .experts = 4, .ranks = 2, .slots = 10, .seed = 5};

Loads loads_of(const std::string& text, const RoutedModel& of = model) {
  return *test::good(Loads::read("emulated.routing", text, of));
}

ir::Instruction at(const std::string& label, std::int64_t part = 0, std::int64_t parts = 1) {
  ir::Instruction result;
  result.label = label;
  result.attributes = {{"part", part}, {"parts", parts}};
  return result;
}

TEST_CASE("the load of a layer is that of its slowest rank, in the mean over the steps") {
  const std::vector<std::vector<std::vector<double>>> steps{{{4, 2, 1, 1}, {0, 8, 0, 0}}, {{0, 0, 0, 8}, {2, 2, 2, 2}}};
  const auto with_slots = [&](double slots) {
    RoutedModel of = model;
    of.slots = slots;
    return Loads::recorded(of, steps);
  };
  // Loads relative to the mean: 2 1 | 0.5 0.5, then 0 4 | 0 0; 0 0 | 0 4, then 1 1 | 1 1. Ranks: 1.5, 2 and 2, 1.
  const Loads all = with_slots(10);
  CHECK(all.of(at("h.1.moe.experts")).first.fullest == Approx((1.5 + 2) / 2));
  CHECK(all.of(at("h.3.moe.experts/1", 1, 2)).first.fullest == Approx((2 + 1) / 2.0));  // a part is as the whole
  CHECK(all.mean().first.fullest == Approx((1.5 + 2 + 2 + 1) / 4));
  CHECK(all.mean().first.kept == Approx(1));
  CHECK(all.of(at("h.1.moe.experts")).first.least == Approx((0.5 + 0) / 2));
  CHECK(all.mean().rounds == 0);
  // At most 1.25: 1.25 1 | 0.5 0.5, 0 1.25 | 0 0, 0 0 | 0 1.25, 1 1 | 1 1.
  CHECK(with_slots(1.25).mean().first.fullest == Approx((1.125 + 0.625 + 0.625 + 1) / 4));
  CHECK(with_slots(1.25).mean().first.kept == Approx((3.25 + 1.25 + 1.25 + 4) / 16));
  // At most 0.5, which even routing has everywhere: 0.5 0.5 | 0.5 0.5, 0 0.5 | 0 0, 0 0 | 0 0.5, 0.5 0.5 | 0.5 0.5.
  CHECK(with_slots(0.5).mean().first.fullest == Approx((1 + 0.5 + 0.5 + 1) / 4));
  CHECK(with_slots(0.5).mean().first.kept == Approx((1 + 0.25 + 0.25 + 1) / 4));
  CHECK(with_slots(0.5).identity() != all.identity());
  CHECK(Loads::even(model).mean().first.fullest == 1);
  CHECK(Loads::even(model).mean().first.kept == 1);
}

TEST_CASE("a host's load is that of its mean rank, and of its fullest one") {
  RoutedModel of = model;
  of.ranks = 4;
  of.hosts = {{0, 1}, {2, 3}};
  const RoundLoad load = Loads::recorded(of, {{{4, 0, 3, 1}, {2, 2, 2, 2}}}).of(at("h.1.moe")).first;
  CHECK(load.fullest == 2);
  CHECK(load.fullest_host == 1);
  CHECK(load.hosts == std::vector<double>{2, 1.5});
}

TEST_CASE("choices beyond the slots take further rounds, of a part those that its tokens and the ones before fill") {
  RoutedModel of = model;
  of.slots = 2;
  of.in_rounds = true;
  // Relative to the mean: 3 0.5 | 0.25 0.25; the other layer is even.
  const Loads loads = Loads::recorded(of, {{{12, 2, 1, 1}, {1, 1, 1, 1}}});
  ir::Instruction in_body = at("h.1.moe.rounds");
  in_body.repeated = 1;
  const RankLoad whole = loads.of(in_body);
  CHECK(whole.first.fullest == Approx((2 + 0.5) / 2));
  CHECK(whole.first.kept == Approx(3.0 / 4));
  CHECK(whole.rounds == 1);
  CHECK(whole.further.fullest == Approx(1.0 / 2));
  CHECK(whole.further.kept == Approx(1.0 / 4));
  in_body.attributes = {{"part", std::int64_t(0)}, {"parts", std::int64_t(2)}};
  CHECK(loads.of(in_body).rounds == 0);
  in_body.attributes.set("part", std::int64_t(1));
  CHECK(loads.of(in_body).rounds == 1);
  CHECK(loads.of(in_body).further.fullest == Approx(2.0 / 2));  // relative to half of the tokens
  of.slots = 1;
  const RankLoad more = Loads::recorded(of, {{{12, 2, 1, 1}, {1, 1, 1, 1}}}).of(at("h.1.moe"));
  CHECK(more.rounds == 2);
  CHECK(more.further.fullest == Approx(2.0 / 2 / 2));  // of each
  in_body.label = "h.3.moe.rounds";
  CHECK(loads.of(in_body).rounds == 0);
  of.in_rounds = false;
  CHECK(Loads::recorded(of, {{{12, 2, 1, 1}, {1, 1, 1, 1}}}).of(at("h.1.moe")).rounds == 0);
}

TEST_CASE("the shares of a law that drifts pass from one order of the experts to the next, and begin again") {
  const Loads still = loads_of("zipf:1"), drifts = loads_of("zipf:1:4");
  CHECK(still.chosen(0, 0) == still.chosen(0, 100));
  CHECK(drifts.chosen(0, 0) == still.chosen(0, 0));
  const auto first = drifts.chosen(0, 0), later = drifts.chosen(0, 4);
  std::vector<double> sorted = first, sorted_later = later;
  std::ranges::sort(sorted);
  std::ranges::sort(sorted_later);
  CHECK(sorted == sorted_later);
  int others = 0;
  for (std::int64_t order = 1; order < 8; ++order) others += drifts.chosen(0, 4 * order) != first;
  CHECK(others > 3);
  for (std::size_t e = 0; e < 4; ++e) CHECK(drifts.chosen(0, 1)[e] == Approx(0.75 * first[e] + 0.25 * later[e]));
  CHECK(drifts.chosen(0, 32) == first);
  CHECK(drifts.mean().first.fullest != still.mean().first.fullest);
}

TEST_CASE("loads that cannot be read is refused in one line") {
  const test::TemporaryFolder folder;
  const auto error_of = [](const std::string& text) {
    const auto loads = Loads::read("emulated.routing", text, model);
    REQUIRE_FALSE(loads.ok());
    CHECK(loads.error().code == ExitCode::config);
    return loads.error().message;
  };
  for (const char* text :
       {"", "zipf", "zipf:", "zipf:-1", "zipf:11", "zipf:1x", "zipf:nan", "zipf:1:", "zipf:1:0", "zipf:1:2:3", "odd"})
    CHECK(error_of(text) ==
          std::string("emulated.routing: expected even, zipf:S with S from 0 to 10, zipf:S:N with N steps from 1 to "
                      "1000000, or a file of records (metrics.jsonl), found ") +
              text);
  const auto refused = [&](const std::string& records, const std::string& expected) {
    const std::string file = folder.write("trace", records);
    CHECK(error_of("trace:" + file) == error_of(file));
    CHECK(error_of(file) == "emulated.routing: " + file + ": " + expected);
  };
  refused("{\"step\": 1}\n",
          "expected records with layer_expert_tokens, found none (log.interval=1 writes them each step)");
  refused(R"({"layer_expert_tokens": [[1, 2, 3, 4]]})",
          "line 1: expected counts of 2 MoE layers with 4 experts, found 1 with 4");
  refused(R"({"layer_expert_tokens": [[1, 2], [1, 2]]})",
          "line 1: expected counts of 2 MoE layers with 4 experts, found 2 with 2");
  refused(R"({"layer_expert_tokens": [[1, 2, 3, 4], [0, 0, 0, 0]]})",
          "line 1: expected 4 counts of tokens a layer, found others");
  refused(R"({"layer_expert_tokens": [[1, 2, 3, 4], [1, 2, -3, 4]]})",
          "line 1: expected 4 counts of tokens a layer, found others");
  refused(R"({"layer_expert_tokens": [[1, 2, 3, 4], [1e308, 1e308, 3, 4]]})",
          "line 1: expected 4 counts of tokens a layer, found others");
  CHECK(error_of("/dev/zero") ==
        "emulated.routing: /dev/zero: expected the records of a run (metrics.jsonl), found no regular file");
  CHECK(error_of("trace:" + (folder / "none")) ==
        "emulated.routing: " + (folder / "none") +
            ": expected the records of a run (metrics.jsonl), found no file that can be read");
}

}  // namespace
}  // namespace lancet::cost
