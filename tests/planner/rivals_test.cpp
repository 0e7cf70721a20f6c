// The schedules of Tutel, FasterMoE and FlowMoE: their parts and their order, on layers small enough to check by hand.
#include "declared_costs.h"
#include "good.h"
#include "lancet/ir/plan.h"
#include "lancet/planner/planner.h"
#include "lancet/schedule/overlap.h"
#include "lancet/schedule/plan_memory.h"
#include "steps/models.h"

using namespace lancet;
using namespace lancet::test;

namespace {

// An all-to-all takes 1 ms and 4 ms for the rows of all tokens at width 4. The first layer's experts take 8 ms, half of
// them 4; the second layer's none.
struct HandCosts final : cost::Costs {
  std::optional<double> compute_ms(std::string_view key) const override {
    const bool half = key.find("tokens=8") != key.npos || key.find("columns=2") != key.npos,
               second = key.find("f32[2,8]") != key.npos;
    return !key.starts_with("expert_linear(") || second ? 0 : half ? 4 : 8;
  }
  double all_to_all_ms(double bytes, ir::Axes = {}) const override { return bytes < 32 ? 0 : 1 + bytes / 32; }
  double all_reduce_ms(double, ir::Axes = {}) const override { return 0; }
  cost::CoreCost all_to_all_core() const override { return {}; }
  cost::CoreCost all_reduce_core() const override { return {}; }
  double launch_ms() const override { return 0; }
  cost::Interference interference() const override { return {}; }
};

constexpr std::string_view two_layers = R"(
input @x : f32[2,8,4]
input @a.expert : i32[16,1]
input @a.slot : i32[16,1]
input @a.weight : f32[16,1]
input @a : i32[4,2]
input @b.expert : i32[16,1]
input @b.slot : i32[16,1]
input @b.weight : f32[16,1]
input @b : i32[4,2]
parameter @w : f32[2{expert},4,4]
parameter @v : f32[2{expert},4]
parameter @p : f32[2{expert},8,4]
parameter @q : f32[2{expert},8]
%0 : i32[2,3] = all_to_all_counts(@a) {ranks=2}  # expert forward a.counts
%1 : f32[4,4,4] = dispatch(@x, @a.expert, @a.slot, @a) {slots=4}  # compute forward a.dispatch
%2 : f32[2,8,4] = all_to_all(%1, @a, %0) {tokens=16}  # expert forward a.there
%3 : f32[2,8,4] = expert_linear(%2, @w, @v, %0) {tokens=16}  # compute forward a.experts
%4 : f32[4,4,4] = all_to_all_back(%3, @a, %0) {tokens=16}  # expert forward a.back
%5 : f32[2,8,4] = combine(%4, @a.expert, @a.slot, @a.weight, @a) {batch=2}  # compute forward a.combine
%6 : i32[2,3] = all_to_all_counts(@b) {ranks=2}  # expert forward b.counts
%7 : f32[4,4,4] = dispatch(%5, @b.expert, @b.slot, @b) {slots=4}  # compute forward b.dispatch
%8 : f32[2,8,4] = all_to_all(%7, @b, %6) {tokens=16}  # expert forward b.there
%9 : f32[2,8,8] = expert_linear(%8, @p, @q, %6) {tokens=16}  # compute forward b.experts
%10 : f32[4,4,8] = all_to_all_back(%9, @b, %6) {tokens=16}  # expert forward b.back
%11 : f32[2,8,8] = combine(%10, @b.expert, @b.slot, @b.weight, @b) {batch=2}  # compute forward b.combine
output y = %11
)";

// One layer with two products of 8 ms each; half of the rows or of the columns take half as long. Most memory is taken
// by what follows.
constexpr std::string_view two_products = R"(
input @x : f32[2,8,4]
input @a.expert : i32[16,1]
input @a.slot : i32[16,1]
input @a.weight : f32[16,1]
input @a : i32[4,2]
parameter @w : f32[2{expert},4,4]
parameter @v : f32[2{expert},4]
parameter @head : f32[400,4]
%0 : i32[2,3] = all_to_all_counts(@a) {ranks=2}  # expert forward a.counts
%1 : f32[4,4,4] = dispatch(@x, @a.expert, @a.slot, @a) {slots=4}  # compute forward a.dispatch
%2 : f32[2,8,4] = all_to_all(%1, @a, %0) {tokens=16}  # expert forward a.there
%3 : f32[2,8,4] = expert_linear(%2, @w, @v, %0) {tokens=16}  # compute forward a.fc
%4 : f32[2,8,4] = expert_linear(%3, @w, @v, %0) {tokens=16}  # compute forward a.proj
%5 : f32[4,4,4] = all_to_all_back(%4, @a, %0) {tokens=16}  # expert forward a.back
%6 : f32[2,8,4] = combine(%5, @a.expert, @a.slot, @a.weight, @a) {batch=2}  # compute forward a.combine
%7 : f32[2,8,400] = linear(%6, @head)  # compute forward head
output y = %7
)";

schedule::Step step_of(const ir::Program& program, const cost::Costs& costs) {
  auto step = test::good(schedule::Step::make(program, costs, {2}));
  return std::move(step.value());
}

std::vector<std::string> timed_labels(const schedule::Candidate& candidate, ir::Stream stream) {
  std::vector<std::string> labels;
  for (std::size_t i = 0; i < candidate.op_costs.size(); ++i)
    if (candidate.program.instructions[i].stream == stream && candidate.op_costs[i].ms > 0)
      labels.push_back(candidate.program.instructions[i].label);
  return labels;
}

using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("tutel splits the layer whose experts hide an all-to-all, and no other") {
  const HandCosts costs;
  const ir::Program program = test::program(std::string(two_layers));
  const schedule::Step step = step_of(program, costs);
  const auto whole = schedule::take_turns(step, {}, schedule::program_order(step));
  // First layer: 5 + 8 + 5, in two parts 3, 6; 7, 11; 10, 14. Second: 5 + 9, in two parts 3, 6; 11, 16.
  CHECK(whole.timeline.makespan == 32);
  const config::Overlap any_memory{.memory_factor = 100};
  CHECK(schedule::degree_per_layer(step, {.parts = 2, .memory_factor = 100}, whole).timeline.makespan == 30);
  const auto tutel = schedule::degree_per_layer(step, any_memory, whole);
  CHECK(tutel.timeline.makespan == 28);
  CHECK(tutel.how == "experts and their all-to-alls in 2, 1 parts");
  CHECK(timed_labels(tutel, ir::Stream::expert) ==
        Words{"a.there/0", "a.there/1", "a.back/0", "a.back/1", "b.there", "b.back"});
  require_sound(ir::verify(schedule::plan_memory(tutel.program, tutel.needed)));
}

TEST_CASE("fastermoe sends to every group before it receives from any") {
  const HandCosts costs;
  const ir::Program program = test::program(std::string(two_layers));
  const schedule::Step step = step_of(program, costs);
  const auto groups = schedule::smart_schedule(step, {.parts = 2}, schedule::program_order(step));
  Words sent;
  for (const ir::Instruction& at : groups.program.instructions)
    if (at.op == "all_to_all" || at.op == "all_to_all_back") sent.push_back(at.label);
  CHECK(sent ==
        Words{"a.there/0", "a.there/1", "a.back/0", "a.back/1", "b.there/0", "b.there/1", "b.back/0", "b.back/1"});
  // The first group of two is the rank itself; the second part sends all that the whole sends.
  CHECK(timed_labels(groups, ir::Stream::expert) == Words{"a.there/1", "a.back/1", "b.there/1", "b.back/1"});
  const auto whole_ms = [&](std::size_t i) { return step.op_costs()[i].ms; };
  for (std::size_t i = 0; i < groups.op_costs.size(); ++i)
    if (groups.program.instructions[i].label == "a.there/1") CHECK(groups.op_costs[i].ms == whole_ms(2));
  CHECK(timed_labels(groups, ir::Stream::compute) == Words{"a.experts/0", "a.experts/1"});
  require_sound(ir::verify(schedule::plan_memory(groups.program, groups.needed)));
}

TEST_CASE("comet: the own rank's rows first, then columns as soon as they are made") {
  const HandCosts costs;
  const ir::Program program = test::program(std::string(two_products));
  const schedule::Step step = step_of(program, costs);
  const auto whole = schedule::take_turns(step, {}, schedule::program_order(step));
  const auto comet = schedule::tile_experts(step, {}, whole);
  CHECK(comet.how == "received rows in 2 tiles of source ranks, experts' results in 2 tiles of columns");
  CHECK(timed_labels(comet, ir::Stream::expert) == Words{"a.there/1", "a.back/0", "a.back/1"});
  CHECK(timed_labels(comet, ir::Stream::compute) == Words{"a.fc/0", "a.fc/1", "a.proj/0", "a.proj/1"});
  // Whole: 5 + 8 + 8 + 5. In tiles: the own rows at once, beside the others' 5; 4 and 4; columns 4 and 4, each sent
  // in 3.
  CHECK(whole.timeline.makespan == 26);
  CHECK(comet.timeline.makespan == 20);
  require_sound(ir::verify(schedule::plan_memory(comet.program, comet.needed)));
  std::vector<std::string> copies;
  for (const ir::Instruction& at : comet.program.instructions)
    if (at.op == "place_columns") copies.push_back(at.label);
  CHECK(copies == Words{"a.columns/0", "a.columns/1"});
}

TEST_CASE("comet: a forced number of tiles, where ranks and columns allow it") {
  const HandCosts costs;
  const ir::Program program = test::program(std::string(two_products));
  auto step = test::good(schedule::Step::make(program, costs, {4}));
  const auto comet = schedule::tile_experts(*step, {.parts = 4}, schedule::program_order(*step));
  CHECK(comet.how == "received rows whole, experts' results in 4 tiles of columns");
}

TEST_CASE("flowmoe: parts in both passes, weight gradients whole, then the chunks of the all-reduces") {
  test::DeclaredCosts costs;
  costs.network_mb_per_s = 2;
  planner::PlanRequest request{
      .overlap = {.policy = "flowmoe", .parts = 2}, .costs = &costs, .mesh = ir::of_experts(2)};
  request.optimizer.mesh = ir::of_experts(2);
  planner::PlanReport report;
  const auto plan = test::good(planner::make_plan(grown(model(2), 1), request, &report));
  CHECK(plan->header.text("policy") == "flowmoe");
  require_sound(ir::verify(*plan));
  int forward = 0, backward = 0;
  for (const ir::Instruction& at : plan->program.instructions) {
    const bool part = at.attributes.has("parts");
    forward += part && at.role == ir::Role::forward;
    backward += part && at.role == ir::Role::dx;
    INFO(at.label);
    if (at.op == "slots" || at.op == "attention" || at.op == "all_to_all") CHECK(part);
    if (at.op == "expert_linear_dw") CHECK_FALSE(part);
  }
  CHECK(forward > 0);
  CHECK(backward > 0);
  REQUIRE(report.passes.size() > 3);
  CHECK(report.passes[report.passes.size() - 3].name == "pipeline_both_passes");
  CHECK(report.passes[report.passes.size() - 2].name == "chunk_all_reduces");
}
