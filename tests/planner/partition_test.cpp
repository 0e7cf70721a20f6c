// Partitioning (Lancet, section 5): axes, ranges, list schedules, the rewritten program.

#include <limits>
#include <map>
#include <random>
#include <set>

#include "declared_costs.h"
#include "good.h"
#include "lancet/ir/dependencies.h"
#include "lancet/planner/planner.h"
#include "lancet/schedule/plan_memory.h"
#include "lancet/schedule/step.h"
#include "schedule/orders.h"
#include "schedule/ranges.h"
#include "steps/models.h"

using namespace lancet;
using namespace lancet::test;
using schedule::Cut;
using schedule::Range;
using schedule::Ranges;

namespace {

ir::Program whole_step(const ir::Program& forward) {
  passes::OptimizeOptions options;
  options.mesh = ir::of_experts(2);
  return passes::optimize(
      passes::sync(of_rank(passes::autodiff(forward), ir::of_experts(2)), ir::of_experts(2), 1 << 20), options);
}

const test::DeclaredCosts costs;

schedule::Step step_of(const ir::Program& program, const cost::Costs& with = costs) {
  auto step = test::good(schedule::Step::make(program, with, schedule::part_counts({.max_parts = 2})));
  return std::move(step.value());
}

std::map<std::string, std::set<std::string>> labels_of_rows(const schedule::Step& step, const Cut& cut) {
  std::map<std::string, std::set<std::string>> result;  // op -> "split", "whole"
  for (std::size_t i = 0; i < step.program().instructions.size(); ++i)
    result[step.program().instructions[i].op].insert(step.rows(cut)[i] ? "split" : "whole");
  return result;
}

using Words = std::set<std::string>;
const Words split{"split"}, whole{"whole"};

}  // namespace

TEST_CASE("axes: along the batch, from one all-to-all to the next") {
  const auto rows = labels_of_rows(step_of(whole_step(model(2))), schedule::cut_named("batch"));
  for (const char* op :
       {"embedding", "layer_norm", "add_layer_norm",    "linear",      "attention",  "gelu",          "router",
        "top_k",     "slots",      "all_to_all_counts", "dispatch",    "all_to_all", "expert_linear", "all_to_all_back",
        "combine",   "combine_dx", "expert_linear_dx",  "dispatch_dx", "top_k_dx",   "attention_dx",  "linear_dx"}) {
    INFO(op);
    CHECK(rows.at(op) == split);
  }
  // Sums over the batch are not split.
  for (const char* op : {"linear_dw", "expert_linear_dw", "layer_norm_dw", "embedding_dw", "adamw", "all_reduce"}) {
    INFO(op);
    CHECK(rows.at(op) == whole);
  }
}

TEST_CASE("axes: along the capacity only the experts and the ops on their rows") {
  const auto rows = labels_of_rows(step_of(whole_step(model(2))), schedule::cut_named("capacity"));
  for (const char* op : {"all_to_all", "expert_linear", "all_to_all_back", "expert_linear_dx"}) {
    INFO(op);
    CHECK(rows.at(op) == split);
  }
  for (const char* op :
       {"all_to_all_counts", "dispatch", "combine", "top_k", "slots", "linear", "combine_dx", "dispatch_dx"}) {
    INFO(op);
    CHECK(rows.at(op) == whole);
  }
  CHECK(rows.at("gelu") == Words{"split", "whole"});  // the experts', and the dense blocks'
}

TEST_CASE("axes: equal extents do not make equal axes") {
  // Batch, sequence, heads and width are all 4: only a tensor's origin tells its axes apart.
  const ir::Program p = program(R"(
input @x : f32[4,4,4]
parameter @g : f32[4]
parameter @b : f32[4]
parameter @w : f32[4,4]
input @expert : i32[16,1]
input @slot : i32[16,1]
input @weight : f32[16,1]
input @filled : i32[4,2]
input @rows : i32[2,3]
%0 : f32[4,4,4], %1 : f32[4,4,2] = layer_norm(@x, @g, @b) {eps=1e-05}  # compute forward a
%2 : f32[4,4,4] = dispatch(%0, @expert, @slot, @filled) {slots=4}  # compute forward d
%3 : f32[2,8,4] = all_to_all(%2, @filled, @rows)  # expert forward t
%4 : f32[4,4,4] = all_to_all_back(%3, @filled, @rows)  # expert forward k
%5 : f32[4,4,4] = combine(%4, @expert, @slot, @weight, @filled) {batch=4}  # compute forward c
%6 : f32[4,4,4] = linear(%5, @w)  # compute forward l
output y = %6
)");
  std::vector<ir::InstructionId> all;
  for (int i = 0; i < 6; ++i) all.push_back({i});
  const schedule::AxisRows rows = schedule::infer_axes(p, all);
  REQUIRE(std::all_of(rows.begin(), rows.end(), [](const auto& row) { return row != nullptr; }));
  CHECK(rows[0]->operands[0] == 0);
  CHECK(rows[1]->results[0] == ops::irregular);
  CHECK(rows[5]->operands == std::vector<ops::Axis>{0, ops::none, ops::none});
}

TEST_CASE("axes: a gate over the whole batch stays whole, its successors are split") {
  ir::Program forward = model(2);
  for (ir::Instruction& at : forward.instructions)
    if (at.op == "slots") at.op = "slots_by_choice";
  const schedule::Step step = step_of(whole_step(forward));
  const auto rows = labels_of_rows(step, schedule::cut_named("batch"));
  CHECK(rows.at("slots_by_choice") == whole);
  CHECK(rows.at("dispatch") == split);
  CHECK(rows.at("combine") == split);
  // The slots that it fills are split once; the parts do not run the gate again.
  int gates = 0, splits = 0;
  for (const ir::Instruction& at :
       schedule::rewrite(step.program(), step.all(schedule::cut_named("batch"), 2)).program.instructions) {
    gates += at.op == "slots_by_choice";
    splits += at.op == "split_filled";
  }
  CHECK(gates == 2);
  CHECK(splits == 4);
}

TEST_CASE("ranges: the dynamic programme finds the result of exhaustive search") {
  std::mt19937 random(7);
  const std::vector<int> parts{1, 2, 4};
  for (int round = 0; round < 60; ++round) {
    const int groups = 8, max_range = 1 + int(random() % 8);
    std::map<std::tuple<int, int, int>, double> table;
    for (int i = 0; i < groups; ++i)
      for (int n = i + 1; n <= groups; ++n)
        for (int k : parts) {
          const double ms = double(n - i) * (1 + double(random() % 1000) / 1000);
          table[{i, n, k}] = k > 1 && random() % 3 == 0 ? std::numeric_limits<double>::infinity() : ms;
        }
    auto cost = [&](int i, int n, int k) { return table.at({i, n, k}); };
    const Ranges found = schedule::choose_ranges(groups, max_range, parts, cost);
    // All divisions of 8 groups into ranges, each with its best number of parts.
    double best = std::numeric_limits<double>::infinity();
    for (int cuts = 0; cuts < 1 << (groups - 1); ++cuts) {
      double ms = 0;
      for (int i = 0, n = 1; n <= groups; ++n) {
        if (n < groups && !(cuts >> (n - 1) & 1)) continue;
        double least = std::numeric_limits<double>::infinity();
        for (int k : parts)
          if (n - i <= max_range) least = std::min(least, cost(i, n, k));
        ms += least;
        i = n;
      }
      best = std::min(best, ms);
    }
    CHECK(found.ms == Approx(best));
    double sum = 0;
    int at = 0;
    for (const Range& range : found.ranges) {
      CHECK(range.begin == at);
      CHECK(range.end - range.begin <= max_range);
      sum += cost(range.begin, range.end, range.parts);
      at = range.end;
    }
    CHECK(at == groups);
    CHECK(sum == Approx(found.ms));
  }
}

// Ranges of different part counts may only meet between groups, and a route has one number of parts.
TEST_CASE("ranges: a layer's all-to-alls stay in one group, and so do its gate and combine") {
  const schedule::Step step = step_of(whole_step(grown(model(2), 2)));
  for (int per_moe : {1, 3, 8}) {
    const auto groups = schedule::forward_groups(step, per_moe);
    CHECK(groups.front() == 0);
    CHECK(groups.back() == step.forward_end());
    CHECK(std::is_sorted(groups.begin(), groups.end()));
    std::size_t group = 0;
    std::map<std::size_t, int> all_to_alls, gates, combines;  // by group
    for (std::size_t i = 0; i < step.forward_end(); ++i) {
      while (groups[group + 1] <= i) ++group;
      const std::string& op = step.program().instructions[i].op;
      all_to_alls[group] += op.starts_with("all_to_all") && op != "all_to_all_counts";
      gates[group] += op == "slots";
      combines[group] += op == "combine";
    }
    CHECK(gates == combines);
    for (const auto& [g, count] : all_to_alls) CHECK((count == 0 || count == 2));
  }
}

TEST_CASE("list schedules keep dependencies, streams and bounds") {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    std::vector<schedule::Job> jobs;
    std::array<double, ir::stream_count> busy{};
    double longest = 0;
    std::vector<double> path;
    for (std::int32_t i = 0; i < 40; ++i) {
      schedule::Job job;
      job.stream = static_cast<ir::Stream>(random() % 3);
      job.ms = random() % 5 == 0 ? 0 : double(random() % 100) / 10;
      job.part = int(random() % 5) - 1;
      job.filler = random() % 4 == 0;
      for (int n = 0; n < 3; ++n)
        if (i > 0 && random() % 2) job.needs.push_back(std::int32_t(random() % unsigned(i)));
      std::sort(job.needs.begin(), job.needs.end());
      job.needs.erase(std::unique(job.needs.begin(), job.needs.end()), job.needs.end());
      busy[std::size_t(job.stream)] += job.ms;
      double before = 0;
      for (std::int32_t need : job.needs) before = std::max(before, path[std::size_t(need)]);
      path.push_back(before + job.ms);
      longest = std::max(longest, path.back());
      jobs.push_back(job);
    }
    const schedule::ListOptions options{
        .shared_network = random() % 2 == 0, .fill_gaps = random() % 2 == 0, .lead = double(random() % 3) / 16};
    const schedule::ListSchedule schedule = schedule::list_schedule(jobs, options);
    REQUIRE(schedule.order.size() == jobs.size());
    std::vector<bool> done(jobs.size());
    std::array<double, ir::stream_count> stream_end{};
    for (ir::InstructionId id : schedule.order) {
      const schedule::Job& job = jobs[id.index()];
      const double start = schedule.end[id.index()] - job.ms;
      for (std::int32_t need : job.needs) {
        CHECK(done[std::size_t(need)]);
        CHECK(start >= schedule.end[std::size_t(need)] - 1e-9);
      }
      if (job.ms > 0) {
        CHECK(start >= stream_end[std::size_t(job.stream)] - 1e-9);
        stream_end[std::size_t(job.stream)] = schedule.end[id.index()];
      }
      CHECK(!done[id.index()]);
      done[id.index()] = true;
    }
    const double network = options.shared_network ? busy[1] + busy[2] : std::max(busy[1], busy[2]);
    CHECK(schedule.makespan >= std::max({longest, busy[0], network}) - 1e-9);
    CHECK(schedule.makespan <= busy[0] + busy[1] + busy[2] + 1e-9);
  }
}

TEST_CASE("a filler runs in a gap that it fits, and at once if memory is short") {
  using schedule::Job;
  // An all-to-all of 10 ms, after which `next` must run; fillers of 7 and 12 ms.
  std::vector<Job> jobs{{.stream = ir::Stream::expert, .ms = 10, .needs = {}, .blocks = {}},
                        {.ms = 12, .filler = true, .needs = {}, .blocks = {0}},
                        {.ms = 7, .filler = true, .needs = {}, .blocks = {1}},
                        {.ms = 5, .needs = {0}, .blocks = {}}};
  const std::vector<std::int64_t> bytes{100, 1};
  CHECK(schedule::list_schedule(jobs, {}, {bytes}).order ==
        schedule::Order{{0}, {2}, {1}, {3}});  // 7 fits; at 7 ms only the other filler is ready
  jobs[1].ms = 30;
  CHECK(schedule::list_schedule(jobs, {}, {bytes}).order.at(1) == ir::InstructionId{2});
  std::vector<Job> full = jobs;
  full.push_back({.ms = 1, .needs = {}, .blocks = {0, 1}});  // makes both blocks
  full[1].needs = full[2].needs = {};
  const auto eager = schedule::list_schedule(full, {.memory_bytes = 50}, {bytes});
  CHECK(std::find(eager.order.begin(), eager.order.end(), ir::InstructionId{1}) - eager.order.begin() <= 2);
}

TEST_CASE("a job waits for memory that another frees, unless nothing else can run") {
  using schedule::Job;
  // Two chains: 0, 1 frees block 0, which is alive before; 2, 3 is more urgent, makes block 1, which stays.
  const std::vector<Job> jobs{{.ms = 1, .needs = {}, .blocks = {0}},
                              {.ms = 1, .needs = {0}, .blocks = {0}},
                              {.ms = 1, .needs = {}, .blocks = {1}},
                              {.ms = 5, .needs = {2}, .blocks = {1}}};
  const std::vector<std::int64_t> bytes{100, 60};
  const std::vector<std::int32_t> before{0}, after{1};
  const schedule::ListMemory memory{bytes, before, after};
  const schedule::ListSchedule any = schedule::list_schedule(jobs, {}, memory);
  CHECK(any.order == schedule::Order{{2}, {3}, {0}, {1}});
  CHECK(any.peak_bytes == std::vector<std::int64_t>{160});
  const schedule::ListSchedule held = schedule::list_schedule(jobs, {.hold_bytes = 159}, memory);
  CHECK(held.order == schedule::Order{{0}, {1}, {2}, {3}});
  CHECK(held.peak_bytes == std::vector<std::int64_t>{100});
  CHECK(schedule::list_schedule(jobs, {.hold_bytes = 10}, memory).order == schedule::Order{{0}, {1}, {2}, {3}});
}

TEST_CASE("every split of a step is sound, and makes each result once") {
  for (int extra : {0, 1}) {
    const schedule::Step step = step_of(whole_step(grown(model(2), extra)));
    for (const Cut* cut : schedule::all_cuts()) {
      if (cut->by_positions) continue;  // of one sequence: tests/train/positions_test.cpp
      const schedule::Split all = step.all(*cut, 2);
      const schedule::Rewritten rewritten = schedule::rewrite(step.program(), all);
      require_sound(ops::verify(rewritten.program));
      (void)text_of(rewritten.program);
      std::map<int, int> parts;
      for (int origin : rewritten.origin)
        if (origin >= 0) ++parts[origin];
      for (std::size_t i = 0; i < all.parts.size(); ++i) CHECK(parts.at(int(i)) == all.parts[i]);
      // The same outputs, of the same types.
      REQUIRE(rewritten.program.outputs.size() == step.program().outputs.size());
      for (std::size_t o = 0; o < rewritten.program.outputs.size(); ++o)
        CHECK(rewritten.program.type(rewritten.program.outputs[o].tensor) ==
              step.program().type(step.program().outputs[o].tensor));
      const ir::Plan plan = schedule::plan_memory(rewritten.program, ir::dependencies(rewritten.program));
      require_sound(ir::verify(plan));
    }
  }
}

TEST_CASE("a split into one part changes nothing") {
  const schedule::Step step = step_of(whole_step(model(2)));
  CHECK(ir::print(schedule::rewrite(step.program(), step.whole(schedule::cut_named("batch"))).program) ==
        ir::print(step.program()));
}

TEST_CASE("parts as text") {
  const schedule::Step step = step_of(whole_step(model(2)));
  require_golden(
      "partition_forward.ir",
      ir::print(schedule::rewrite(step.program(), schedule::split_of(step, {{0, int(step.forward_end()), 2}}, false))
                    .program));
  require_golden("partition_both.ir",
                 ir::print(schedule::rewrite(step.program(), step.all(schedule::cut_named("batch"), 2)).program));
  require_golden("partition_capacity.ir",
                 ir::print(schedule::rewrite(step.program(), step.all(schedule::cut_named("capacity"), 2)).program));
  require_golden(
      "partition_tiles.ir",
      ir::print(schedule::rewrite(step.program(), schedule::joined(step.all(schedule::cut_named("source_rows"), 2),
                                                                   step.all(schedule::cut_named("columns"), 2)))
                    .program));
}

TEST_CASE("ranges: the requested number of groups around each MoE layer, and none twice") {
  const schedule::Step step = step_of(whole_step(grown(model(2), 2)));
  const auto groups = schedule::forward_groups(step, 4);
  std::vector<std::size_t> gates;
  for (std::size_t i = 0; i < step.forward_end(); ++i)
    if (step.program().instructions[i].op == "top_k") gates.push_back(i);
  REQUIRE(gates.size() == 4);
  int covered_before = 0;
  for (int reach : {0, 1, 2, 100}) {
    const auto ranges = schedule::ranges_of_reach(step, {.groups_per_moe = 4, .reach = reach}, 2);
    REQUIRE(ranges.size() == gates.size());
    int covered = 0;
    for (std::size_t l = 0; l < ranges.size(); ++l) {
      const Range& range = ranges[l];
      CHECK(range.parts == 2);
      CHECK(range.begin <= int(gates[l]));
      CHECK(range.end > int(gates[l]));
      CHECK((l == 0 || ranges[l - 1].end <= range.begin));
      const auto between = std::count_if(groups.begin(), groups.end(),
                                         [&](std::size_t g) { return int(g) >= range.begin && int(g) < range.end; });
      CHECK(between <= 2 * reach + 1);
      covered += range.end - range.begin;
    }
    if (reach == 0)
      for (const Range& range : ranges) CHECK(step.program().instructions[std::size_t(range.begin)].op == "top_k");
    CHECK(covered > covered_before);
    covered_before = covered;
  }
  CHECK(covered_before == int(step.forward_end()));
}

TEST_CASE("policies: lancet leaves the backward pass whole if the config says so") {
  test::DeclaredCosts slow;
  slow.network_mb_per_s = 2;  // so that weight gradients cannot hide all communication
  std::vector<double> steps;
  for (const bool backward : {true, false}) {
    planner::PlanRequest request{.overlap = {.policy = "lancet", .parts = 2, .split_backward = backward},
                                 .costs = &slow,
                                 .mesh = ir::of_experts(2)};
    request.optimizer.mesh = ir::of_experts(2);
    const auto plan = test::good(planner::make_plan(grown(model(2), 1), request));
    int forward_parts = 0, backward_parts = 0;
    for (const ir::Instruction& at : plan->program.instructions)
      if (at.attributes.has("parts")) ++(at.role == ir::Role::forward ? forward_parts : backward_parts);
    CHECK(forward_parts > 0);
    CHECK((backward_parts > 0) == backward);
    steps.push_back(plan->header.real("predicted_ms"));
  }
  CHECK(steps[0] <= steps[1]);
}

TEST_CASE("policies: groups of peers must divide the ranks") {
  const auto step = test::good(schedule::Step::make(whole_step(model(2)), costs, {2, 4}));
  CHECK(step->part_counts(schedule::cut_named("capacity")) == std::vector{2, 4});
  CHECK(step->part_counts(schedule::cut_named("peers")) == std::vector{2});
}

TEST_CASE("policies: if no policy beats sequential, sequential runs and reports why") {
  test::DeclaredCosts expensive;
  expensive.latency_ms = 0;
  expensive.network_mb_per_s = 1e9;  // nothing to hide
  planner::PlanRequest request{
      .overlap = {.policy = GENERATE("tutel", "expert_pipeline")}, .costs = &expensive, .mesh = ir::of_experts(2)};
  request.optimizer.mesh = ir::of_experts(2);
  planner::PlanReport report;
  const auto plan = test::good(planner::make_plan(model(2), request, &report));
  CHECK(report.chosen == "sequential");
  CHECK(report.requested == "tutel");
  CHECK(report.why.starts_with("tutel runs sequential: predicted"));
}

TEST_CASE("policies: the same input gives the same bytes, and predictions keep their bounds") {
  for (const auto& [policy, what, cuts] : planner::policies()) {
    planner::PlanRequest request{
        .overlap = {.policy = std::string(policy)}, .costs = &costs, .mesh = ir::of_experts(2)};
    request.optimizer.mesh = ir::of_experts(2);
    planner::PlanReport report;
    const auto first = planner::make_plan(grown(model(2), 1), request, &report);
    const auto second = planner::make_plan(grown(model(2), 1), request);
    INFO(policy);
    REQUIRE(first.ok());
    REQUIRE(second.ok());
    CHECK((ir::print(*first) == ir::print(*second)));
    require_sound(ir::verify(*first));
    for (const planner::PolicyResult& result : report.policies) {
      const schedule::Timeline& t = result.timeline;
      CHECK(t.makespan >= std::max(t.compute, t.communication) - 1e-9);
      CHECK(t.makespan <= t.compute + t.all_to_all + t.all_reduce + 0.05 * double(t.when.size()));
    }
  }
}
