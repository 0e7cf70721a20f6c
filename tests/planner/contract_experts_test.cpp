// The pass that tiles all-to-alls before products by the columns that the products sum over: what it chooses, in which
// order the tiles run, and what it leaves as it was.
#include <catch2/catch.hpp>

#include "declared_costs.h"
#include "lancet/ir/verify.h"
#include "lancet/planner/planner.h"
#include "lancet/schedule/overlap.h"
#include "lancet/schedule/plan_memory.h"
#include "steps/models.h"

using namespace lancet;
using namespace lancet::test;

namespace {

// A layer's first product behind its all-to-all, with room in memory: something large is made at the end.
constexpr std::string_view rows_and_product = R"(
input @x : f32[2,8,8]
input @large : f32[64,64]
input @expert : i32[16,1]
input @slot : i32[16,1]
input @filled : i32[4,2]
parameter @w : f32[2{expert},16,8]
parameter @b : f32[2{expert},16]
%0 : i32[2,3] = all_to_all_counts(@filled) {ranks=2}  # expert forward a.counts
%1 : f32[4,4,8] = dispatch(@x, @expert, @slot, @filled) {slots=4}  # compute forward a.dispatch
%2 : f32[2,8,8] = all_to_all(%1, @filled, %0) {tokens=16}  # expert forward a.there
%3 : f32[2,8,16] = expert_linear(%2, @w, @b, %0) {tokens=16}  # compute forward a.fc
%4 : f32[2,8,16] = gelu(%3, %0) {tokens=16}  # compute forward a.gelu
%5 : f32[64,64] = gelu(@large)  # compute forward large
output y = %4
output large = %5
)";

// 8 ms a product and 8 ms an all-to-all of all columns, tiles in proportion; copies take `copy_ms` each, else nothing.
struct CostsOfTiles final : cost::Costs {
  double copy_ms = 0, latency_ms = 0;
  std::optional<double> compute_ms(std::string_view key) const override {
    const auto columns = [&] {  // of operand 0, [2,8,columns]
      return std::atof(std::string(key.substr(key.find("[2,8,") + 5, 4)).c_str());
    };
    if (key.starts_with("take_columns") || key.starts_with("place_columns")) return copy_ms;
    return key.starts_with("expert_linear") ? columns() : 0;
  }
  double all_to_all_ms(double bytes, mesh::Axes = {}) const override {
    return bytes > 8 ? latency_ms + bytes / 32 : 0;  // half of 16 rows of 8 columns are 256 bytes; counts take nothing
  }
  double all_reduce_ms(double, mesh::Axes = {}) const override { return 0; }
  cost::CoreCost all_to_all_core() const override { return {}; }
  cost::CoreCost all_reduce_core() const override { return {}; }
  double launch_ms() const override { return 0; }
  cost::Interference interference() const override { return {}; }
};

struct Contracted {
  schedule::Candidate whole, found;
};

Contracted contracted(const cost::Costs& costs, const config::Overlap& overlap = {},
                      std::string_view text = rows_and_product) {
  const ir::Program program = test::program(std::string(text));
  const auto step = schedule::Step::make(program, costs, schedule::part_counts(overlap));
  if (!step.ok()) FAIL(step.error().message);
  const auto whole = schedule::take_turns(*step, {}, schedule::program_order(*step));
  return {whole, schedule::contract_experts(*step, overlap, whole)};
}

std::vector<std::string> labels_that_take_time(const schedule::Candidate& candidate, ir::Stream stream) {
  std::vector<std::string> labels;
  for (std::size_t i = 0; i < candidate.op_costs.size(); ++i)
    if (candidate.program.instructions[i].stream == stream && candidate.op_costs[i].ms > 0)
      labels.push_back(candidate.program.instructions[i].label);
  return labels;
}

using Labels = std::vector<std::string>;

}  // namespace

TEST_CASE("contract_experts: a tile is multiplied while the next one travels") {
  const auto [whole, found] = contracted(CostsOfTiles{}, {.parts = 2});
  CHECK(whole.timeline.makespan == 16);
  CHECK(found.timeline.makespan == 12);  // 4, then 4 and 4 beside each other, then 4
  CHECK(labels_that_take_time(found, ir::Stream::expert) == Labels{"a.there/0", "a.there/1"});
  CHECK(labels_that_take_time(found, ir::Stream::compute) == Labels{"a.fc/0", "a.fc/1"});
  CHECK(found.how == "compute and all-to-all take turns; all-to-alls before products in 2 tiles of summed columns");
  require_sound(ops::verify(found.program));
  require_sound(ir::verify(schedule::plan_memory(found.program, found.needed)));
}

TEST_CASE("contract_experts: the simulator chooses the number of tiles by latencies and copies") {
  CostsOfTiles costs;
  CHECK(contracted(costs).found.timeline.makespan == 9);  // 8 tiles: 8 + 1
  costs.latency_ms = 1;
  CHECK(contracted(costs).found.timeline.makespan == 14);  // 2 tiles: 5 + 5 + 4
  costs.latency_ms = 20;
  CHECK(contracted(costs).found.how == "compute and all-to-all take turns");
  costs.latency_ms = 0, costs.copy_ms = 4;
  CHECK(contracted(costs).found.how == "compute and all-to-all take turns");
}

TEST_CASE("contract_experts: a forced number of tiles is taken even if it is longer") {
  CostsOfTiles costs;
  costs.copy_ms = 10;
  const auto [whole, found] = contracted(costs, {.parts = 4});
  CHECK(found.timeline.makespan > whole.timeline.makespan);
  CHECK(schedule::most_parts(found.program) == 4);
  // 3 tiles of 8 columns are unequal: 2, 3 and 3.
  const auto uneven = contracted(CostsOfTiles{}, {.parts = 3}).found;
  CHECK(uneven.timeline.makespan == 2 + 3 + 3 + 3);
  CHECK(schedule::most_parts(uneven.program) == 3);
}

TEST_CASE("contract_experts: no tiles where f32 sums need more memory than the sequential step and 5%") {
  std::string text(rows_and_product);
  const auto replace = [&](std::string_view from, std::string_view to) {
    for (std::size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size())
      text.replace(at, from.size(), to);
  };
  for (const std::string shape : {"[2,8,8]", "[2{expert},16,8]", "[4,4,8]", "[2,8,16]"})
    replace("f32" + shape, "bf16" + shape);
  CHECK(contracted(CostsOfTiles{}, {}, text).found.timeline.makespan == 8 + 0.5);
  replace("input @large : f32[64,64]\n", "");
  replace("%5 : f32[64,64] = gelu(@large)  # compute forward large\n", "");
  replace("output large = %5\n", "");
  const auto [whole, found] = contracted(CostsOfTiles{}, {}, text);
  CHECK(found.how == whole.how);
  CHECK(found.timeline.makespan == 4 + 8);
}

TEST_CASE("contract_experts: both passes of a model, shorter than sequential, within the memory") {
  test::DeclaredCosts costs;
  costs.network_mb_per_s = 2;
  costs.elements_per_ms = 1000;
  costs.latency_ms = 0.001;
  planner::PlanRequest request{
      .overlap = {.policy = "collective_matmul"}, .costs = &costs, .mesh = mesh::of_experts(2)};
  request.optimizer.mesh = mesh::of_experts(2);
  planner::PlanReport report;
  const auto plan = planner::make_plan(grown(model(2), 1), request, &report);
  REQUIRE(plan.ok());
  CHECK(plan->header.text("policy") == "collective_matmul");
  int forward = 0, backward = 0;
  for (const ir::Instruction& at : plan->program.instructions) {
    forward += at.op == "expert_linear_sums";
    backward += at.op == "expert_linear_dx_sums";
  }
  CHECK(forward > 1);
  CHECK(backward > 1);
  request.overlap.policy = "sequential";
  const auto sequential = planner::make_plan(grown(model(2), 1), request);
  REQUIRE(sequential.ok());
  CHECK(plan->header.real("predicted_ms") < sequential->header.real("predicted_ms"));
  CHECK(double(plan->arena_bytes) <= 1.05 * double(sequential->arena_bytes));
  require_sound(ir::verify(*plan));
}
