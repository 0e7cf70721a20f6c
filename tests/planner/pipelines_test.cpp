// The pipelines of the Lancet paper: their ranges, stages, copies and times, on a layer small enough to check by hand.
#include <map>

#include "declared_costs.h"
#include "good.h"
#include "lancet/ir/dependencies.h"
#include "lancet/planner/planner.h"
#include "lancet/schedule/overlap.h"
#include "lancet/schedule/plan_memory.h"
#include "schedule/ranges.h"
#include "steps/models.h"

using namespace lancet;
using namespace lancet::test;
using schedule::Range;

namespace {

// Whole, `before` and `after` take 4 ms, each all-to-all 4 ms and the experts 2 ms; half of it, half the time. A copy
// takes copy_ms, whatever its size; nothing else takes time.
struct HandCosts final : cost::Costs {
  double copy_ms = 1;

  std::optional<double> compute_ms(std::string_view key) const override {
    const bool half =
        key.find("f32[1,8,4]") != std::string_view::npos || key.find("tokens=8") != std::string_view::npos;
    if (key.starts_with("copy(") || key.starts_with("concat(")) return copy_ms;
    if (key.starts_with("add(")) return half ? 2 : 4;
    if (key.starts_with("expert_linear(")) return half ? 1 : 2;
    return 0;
  }
  double all_to_all_ms(double bytes, ir::Axes = {}) const override { return bytes < 32 ? 0 : bytes / 32; }
  double all_reduce_ms(double, ir::Axes = {}) const override { return 0; }
  cost::CoreCost all_to_all_core() const override { return {}; }
  cost::CoreCost all_reduce_core() const override { return {}; }
  double launch_ms() const override { return 0; }
  cost::Interference interference() const override { return {}; }
};

// One MoE layer of two ranks between two ops; %0 is read after it as well.
// gate: slots, or a gate that also takes weights.
ir::Program layer(const std::string& gate = "slots(%2)") {
  return program(R"(
input @x : f32[2,8,4]
parameter @gate : f32[4,4]
parameter @w : f32[2{expert},4,4]
parameter @b : f32[2{expert},4]
%0 : f32[2,8,4] = add(@x, @x)  # compute forward before
%1 : f32[2,8,4] = router(%0, @gate)  # compute forward gate
%2 : i32[16,1], %13 : f32[16,1], %3 : f32[2,8,4] = top_k(%1) {k=1}  # compute forward gate
%12 : i32[16,1], %14 : i32[1,4], %15 : i32[4,2], %4 : f32[2,4] = )" +
                 gate + R"( {capacity=4, groups=1, experts=4}  # compute forward gate
%5 : i32[2,3] = all_to_all_counts(%15) {ranks=2}  # expert forward counts
%6 : f32[4,4,4] = dispatch(%0, %2, %12, %15) {slots=4}  # compute forward dispatch
%7 : f32[2,8,4] = all_to_all(%6, %15, %5) {tokens=16}  # expert forward there
%8 : f32[2,8,4] = expert_linear(%7, @w, @b, %5) {tokens=16}  # compute forward experts
%9 : f32[4,4,4] = all_to_all_back(%8, %15, %5) {tokens=16}  # expert forward back
%10 : f32[2,8,4] = combine(%9, %2, %12, %13, %15) {batch=2}  # compute forward combine
%11 : f32[2,8,4] = add(%0, %10)  # compute forward after
output y = %11
)");
}

schedule::Step step_of(const ir::Program& program, const cost::Costs& costs) {
  auto step = test::good(schedule::Step::make(program, costs, {2}));
  return std::move(step.value());
}

std::map<std::string, int> ops_in(const ir::Program& program) {
  std::map<std::string, int> count;
  for (const ir::Instruction& at : program.instructions) ++count[at.op];
  return count;
}

std::vector<std::string> timed_labels(const schedule::Candidate& candidate, ir::Stream stream) {
  std::vector<std::string> labels;
  for (std::size_t i = 0; i < candidate.op_costs.size(); ++i) {
    const ir::Instruction& at = candidate.program.instructions[i];
    const bool copy = at.op == "copy" || at.op == "concat";
    if (at.stream == stream && candidate.op_costs[i].ms > 0) labels.push_back(copy ? at.op : at.label);
  }
  return labels;
}

ir::Program whole_step(const ir::Program& forward) {
  passes::OptimizeOptions options;
  options.mesh = ir::of_experts(2);
  return passes::optimize(
      passes::sync(of_rank(passes::autodiff(forward), ir::of_experts(2)), ir::of_experts(2), 1 << 20), options);
}

using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("a pipeline of two parts: its order and its time, with its copies") {
  HandCosts costs;
  const ir::Program program = layer();
  const schedule::Step step = step_of(program, costs);
  // Whole: 4 + 4 + 2 + 4 + 4. Copies of both parts of x until 2; before/0 4, /1 6; there/0 6, /1 8; experts/0 7, /1 9;
  // back/0 10, /1 12; after/0 12, /1 14; the result is joined from 14 to 15.
  CHECK(schedule::program_order(step).timeline.makespan == 18);
  const auto copies = schedule::pipelines_with_copies(step, {}, schedule::program_order(step));
  CHECK(copies.timeline.makespan == 15);
  CHECK(timed_labels(copies, ir::Stream::compute) ==
        Words{"copy", "copy", "before/0", "before/1", "experts/0", "experts/1", "after/0", "after/1", "concat"});
  CHECK(timed_labels(copies, ir::Stream::expert) == Words{"there/0", "there/1", "back/0", "back/1"});
  require_sound(ops::verify(copies.program));
  require_sound(ir::verify(schedule::plan_memory(copies.program, copies.needed)));
}

TEST_CASE("a pipeline by the batch is made where its copies cost less than it gains over one by capacity") {
  HandCosts costs;
  const ir::Program program = layer();
  // Whole, 18 ms; without copies the pipeline by the batch would take 12, and it needs three. By capacity: before 4,
  // there/0 6, /1 8; experts/0 7, /1 9; back/0 10, /1 12; after 16.
  for (const auto& [copy_ms, by_capacity, ms] : {std::tuple{1.3, false, 15.9}, {1.4, true, 16.0}}) {
    costs.copy_ms = copy_ms;
    const schedule::Step step = step_of(program, costs);
    const auto found = schedule::choose_pipelines(step, {});
    INFO("copies of " << copy_ms << " ms");
    REQUIRE(found.size() == 1);
    CHECK(found[0].by_capacity == by_capacity);
    const auto made = schedule::pipelines_with_copies(step, {}, schedule::program_order(step));
    CHECK(made.timeline.makespan == Approx(ms));
    CHECK(ops_in(made.program)["split_capacity"] == (by_capacity ? 2 : 0));
    require_sound(ops::verify(made.program));
    require_sound(ir::verify(schedule::plan_memory(made.program, made.needed)));
  }
}

TEST_CASE("a gate over the whole batch begins its pipeline") {
  HandCosts costs;
  costs.copy_ms = 0.1;
  const ir::Program program = layer("slots_by_priority(%2, %13)");
  const schedule::Step step = step_of(program, costs);
  const auto found = schedule::choose_pipelines(step, {});
  REQUIRE(found.size() == 1);
  CHECK(program.instructions[std::size_t(found[0].begin)].op == "slots_by_priority");
  CHECK(found[0].end == int(program.instructions.size()));
  const auto candidate = schedule::pipelines_with_copies(step, {}, schedule::program_order(step));
  require_sound(ops::verify(candidate.program));
  // %0 is made before the pipeline: dispatch and `after` read copies of its parts.
  CHECK(ops_in(candidate.program)["copy"] == 2);
  CHECK(ops_in(candidate.program)["concat"] == 1);
}

TEST_CASE("copies at the borders: what is split, what is joined, and nothing flows past them") {
  const test::DeclaredCosts costs;
  for (int extra : {0, 1}) {
    const schedule::Step step = step_of(whole_step(grown(model(2), extra)), costs);
    const auto groups = schedule::forward_groups(step, 5);
    const std::vector<int> layers = schedule::moe_groups(step, groups);
    REQUIRE(layers.size() >= 2);
    // Two pipelines that meet: everything up to the second layer's gate, and the rest.
    const int border = int(groups[std::size_t(layers[1])]), end = int(step.forward_end());
    const std::vector<Range> ranges{{0, border, 2}, {border, end, 2}};
    const schedule::Split split = schedule::split_in_pipelines(step, ranges);
    const schedule::Rewritten made = schedule::rewrite(step.program(), split);
    require_sound(ops::verify(made.program));
    require_sound(ir::verify(schedule::plan_memory(made.program, ir::dependencies(made.program))));
    // The backward pass reads no part, and the second pipeline no part of the first.
    std::vector<int> pipeline_of(made.program.tensors.size());  // of a part: its pipeline
    int joined = 0;
    for (std::size_t i = 0; i < made.origin.size(); ++i) {
      const ir::Instruction& at = made.program.instructions[i];
      joined += at.op == "concat" || at.op == "merge_slots";
      if (made.origin[i] < 0) continue;
      const bool part = split.parts[std::size_t(made.origin[i])] > 1;
      const int pipeline = part ? split.pipeline[std::size_t(made.origin[i])] : 0;
      for (ir::TensorId id : at.operands) {
        if (made.program.type(id).dtype != DType::i32 && pipeline_of[id.index()] > 0)
          CHECK(pipeline_of[id.index()] == pipeline);
      }
      for (ir::TensorId id : at.results) pipeline_of[id.index()] = pipeline;
    }
    CHECK(joined > 10);
    CHECK(ops_in(made.program)["merge_slots"] == 4 * int(layers.size()));  // into and out of the experts' two layers
  }
}

TEST_CASE("lancet_paper: one pipeline an MoE layer at most, the backward pass whole, all-reduces as sync made them") {
  test::DeclaredCosts costs;
  costs.network_mb_per_s = 2;
  for (int parts : {0, 2}) {
    planner::PlanRequest request{
        .overlap = {.policy = "lancet_paper", .parts = parts}, .costs = &costs, .mesh = ir::of_experts(2)};
    request.optimizer.mesh = ir::of_experts(2);
    planner::PlanReport report;
    const auto plan = test::good(planner::make_plan(grown(model(2), 2), request, &report));
    REQUIRE(plan->header.text("policy") == "lancet_paper");
    require_sound(ir::verify(*plan));
    request.overlap.policy = "sequential";
    const auto plain = test::good(planner::make_plan(grown(model(2), 2), request));
    CHECK(ops_in(plan->program)["all_reduce"] == ops_in(plain->program)["all_reduce"]);
    for (const ir::Instruction& at : plan->program.instructions)
      if (at.attributes.has("parts")) CHECK(at.role == ir::Role::forward);
    const auto step =
        test::good(schedule::Step::make(whole_step(grown(model(2), 2)), costs, schedule::part_counts(request.overlap)));
    const auto ranges = schedule::choose_pipelines(*step, request.overlap);
    int gates = 0;
    for (const Range& range : ranges) {
      int in_range = 0;
      for (int i = range.begin; i < range.end; ++i)
        in_range += step->program().instructions[std::size_t(i)].op == "slots";
      CHECK(in_range == 1);
      gates += in_range;
    }
    if (parts == 2) CHECK(gates == 4);  // forced: every layer is split
  }
}
