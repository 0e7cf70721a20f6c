// What the page shows of the MoE layers: heat maps of the experts' load, and each layer's last numbers.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "report/pages.h"
#include "report/run_files.h"

namespace lancet::report {

using nlohmann::json;
using test::data_of;
using test::page_of;
using test::record;
using test::TemporaryFolder;

TEST_CASE("the page has the load of each expert, and the layers' numbers of the last record") {
  const TemporaryFolder folder;
  const std::string numbers = R"(, "z_loss": 5, "experts_per_token": 1.5, "layer_drop_pct": [0.5, 12.5])"
                              R"(, "layer_dead_experts": [0, 1], "layer_experts_per_token": [1, 2])"
                              R"(, "layer_z_loss": [4, null], "layer_bias_spread": [])";
  folder.write("metrics.jsonl", record(1, 4, R"(, "layer_expert_tokens": [[3, 1], [0, 8]], "layer_drop_pct": [9, 9])") +
                                    record(2, 3, R"(, "layer_expert_tokens": [[2, 2], [2, 6]])" + numbers));
  const json run = data_of(page_of(folder).value())["runs"][0];
  CHECK(run["load"]["from"] == json({1, 2}));
  const json &first = run["load"]["layers"][0], &second = run["load"]["layers"][1];
  CHECK(first["percent"] == json({150, 50, 100, 100}));  // of an even share
  CHECK(second["percent"] == json({0, 200, 50, 150}));
  CHECK(first["last"] == json({{"drop_pct", 0.5}, {"dead_experts", 0}, {"experts_per_token", 1}, {"z_loss", 4}}));
  CHECK(second["last"]["drop_pct"] == 12.5);
  CHECK(second["last"]["z_loss"].is_null());
  CHECK(run["series"]["z_loss"]["mean"] == json({nullptr, 5}));
  CHECK(run["means"]["experts_per_token"]["last"] == 1.5);
}

TEST_CASE("heat maps of many steps and experts have a bounded size") {
  const TemporaryFolder few, many;
  std::string tokens;
  for (int e = 0; e < 64; ++e) tokens += fmt::format("{}{}", e > 0 ? ", " : "", 1000 + 37 * e);
  const auto of_layers = [&](int steps) {
    std::string text;
    for (int step = 1; step <= steps; ++step)
      text += record(step, 1, fmt::format(R"(, "layer_expert_tokens": [[{0}], [{0}]])", tokens));
    return text;
  };
  few.write("metrics.jsonl", of_layers(int(most_columns)));
  many.write("metrics.jsonl", of_layers(4000));
  const std::string small = page_of(few).value(), large = page_of(many).value();
  CHECK(large.size() < small.size() + 100'000);
  CHECK(large.size() < 1'000'000);
  for (const json& layer : data_of(large)["runs"][0]["load"]["layers"]) {
    CHECK(layer["percent"].size() <= 64 * most_columns);
    CHECK(layer["percent"].size() >= 64 * most_columns / 2);
    CHECK(layer["percent"][0] == 46);  // 1000 of a mean of 2165.5
  }
}

}  // namespace lancet::report
