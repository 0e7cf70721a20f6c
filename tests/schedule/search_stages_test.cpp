// List schedules of all stages, and the bound that no order goes below, against an enumeration of all orders.
#include "lancet/schedule/stage_graph.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <numeric>

#include "lancet/ir/dependencies.h"
#include "lancet/ir/plan.h"
#include "lancet/schedule/overlap.h"
#include "lancet/schedule/plan_memory.h"

using namespace lancet;

namespace {

constexpr std::int64_t any_memory = std::numeric_limits<std::int64_t>::max();

// Milliseconds of a pass on each stage, and of a message.
struct Times {
  std::vector<double> forward, backward, weights;
  double message = 0;
};

struct Stages {
  std::vector<schedule::Candidate> all;
  std::vector<schedule::Dependencies> needed;
  std::vector<std::vector<cost::OpCost>> costs;
  ir::Mesh mesh;

  Stages(int micro_batches, const Times& times) {
    const int count = int(times.forward.size());
    mesh[ir::Axis::stage] = count;
    for (int stage = 0; stage < count; ++stage) {
      schedule::Candidate one;
      one.program = program(stage, count);
      one.needed = ir::dependencies(one.program);
      all.push_back(schedule::in_micro_batches(one, micro_batches));
      needed.push_back(ir::dependencies(all.back().program));
      auto& of_stage = costs.emplace_back();
      for (const ir::Instruction& at : all.back().program.instructions)
        of_stage.push_back({at.stream != ir::Stream::compute ? times.message
                            : at.role == ir::Role::forward   ? times.forward[std::size_t(stage)]
                            : at.role == ir::Role::dx        ? times.backward[std::size_t(stage)]
                                                             : times.weights[std::size_t(stage)]});
    }
  }

  // F, B and W are an instruction each.
  static ir::Program program(int stage, int stages) {
    const std::string type = R"({dtype=f32, shape="4"})";
    const bool first = stage == 0, last = stage + 1 == stages;
    std::string text = "program p\ninput @x : f32[4]\n";
    if (!first) text += "%0 : f32[4] = receive_previous() " + type + "  # receive_previous forward a\n";
    const std::string in = first ? "@x" : "%0";
    text += "%1 : f32[4] = gelu(" + in + ")  # compute forward a\n";
    if (!last) text += "send_next(%1)  # send_next forward a\n";
    if (!last) text += "%2 : f32[4] = receive_next() " + type + "  # receive_next dx a\n";
    const std::string gradient = last ? "%1" : "%2";
    text += "%3 : f32[4] = add(" + gradient + ", " + in + ")  # compute dx a\n";
    if (!first) text += "send_previous(%3)  # send_previous dx a\n";
    text += "%4 : f32[4] = add(%3, " + in + ")  # compute dw a\n";
    const auto parsed = ir::parse(text);
    if (!parsed.ok()) FAIL(parsed.error().message);
    return *parsed;
  }

  std::vector<schedule::RankClass> work() const {
    std::vector<schedule::RankClass> work;
    for (std::size_t s = 0; s < all.size(); ++s) work.push_back({all[s].program, needed[s], costs[s], {1, 1}});
    return work;
  }

  double least() const {
    const auto stages = work();
    return schedule::least_makespan(schedule::stage_graph(stages, mesh), stages);
  }

  schedule::StagesOrder searched(std::int64_t most_bytes = any_memory) const {
    const auto stages = work();
    auto found = schedule::StagesSearch(stages, stages, mesh).within(std::vector<std::int64_t>(all.size(), most_bytes));
    REQUIRE(found);
    return *std::move(found);
  }
};

// The shortest step of two stages over all orders of what each computes, messages in the order of the micro batches.
double best_of_all_orders(const Stages& stages) {
  std::vector<std::vector<std::vector<int>>> orders(2);  // by stage; F, B, W of micro batch m: 3 m, 3 m + 1, 3 m + 2
  const int passes = 3 * 2;
  std::vector<int> order(passes);
  std::iota(order.begin(), order.end(), 0);
  do {
    std::vector<int> place(passes);
    for (int i = 0; i < passes; ++i) place[std::size_t(order[std::size_t(i)])] = i;
    const auto before = [&](int a, int b) { return place[std::size_t(a)] < place[std::size_t(b)]; };
    if (before(0, 1) && before(1, 2) && before(3, 4) && before(4, 5) && before(0, 3) && before(1, 4))
      for (auto& of_stage : orders) of_stage.push_back(order);
  } while (std::ranges::next_permutation(order).found);

  const auto cost = [&](int stage, int pass) {  // in_micro_batches keeps the order of a micro batch
    const auto& instructions = stages.all[std::size_t(stage)].program.instructions;
    const ir::Role roles[] = {ir::Role::forward, ir::Role::dx, ir::Role::dw};
    for (std::size_t i = 0; i < instructions.size(); ++i)
      if (instructions[i].stream == ir::Stream::compute && instructions[i].micro_batch == pass / 3 &&
          instructions[i].role == roles[pass % 3])
        return stages.costs[std::size_t(stage)][i].ms;
    return 0.0;
  };
  double best = std::numeric_limits<double>::infinity();
  for (const auto& first : orders[0])
    for (const auto& second : orders[1]) {
      double end[2][6], free[2] = {0, 0};
      for (auto& of_stage : end) std::ranges::fill(of_stage, -1);
      std::size_t next[2] = {0, 0};
      bool moved = true;
      while (moved) {
        moved = false;
        for (int stage = 0; stage < 2; ++stage) {
          const auto& mine = stage == 0 ? first : second;
          while (next[stage] < mine.size()) {
            const int pass = mine[next[stage]];
            double start = free[stage];
            if (pass % 3 > 0) start = std::max(start, end[stage][pass - 1]);
            const bool crosses = (stage == 1 && pass % 3 == 0) || (stage == 0 && pass % 3 == 1);
            if (crosses && end[1 - stage][pass] < 0) break;
            if (crosses) start = std::max(start, end[1 - stage][pass]);
            free[stage] = end[stage][pass] = start + cost(stage, pass);
            ++next[stage];
            moved = true;
          }
        }
      }
      if (next[0] == first.size() && next[1] == second.size()) best = std::min(best, std::max(free[0], free[1]));
    }
  return best;
}

}  // namespace

TEST_CASE("search of stages: no order of two stages and two micro batches is shorter, or below the bound") {
  int tight = 0;
  for (const auto& [f0, b0, w0] : {std::array{1, 1, 1}, {2, 3, 1}, {1, 2, 4}})
    for (const auto& [f1, b1, w1] : {std::array{1, 1, 1}, {3, 1, 2}, {2, 4, 1}}) {
      INFO(f0 << b0 << w0 << " and " << f1 << b1 << w1);
      const Stages stages(2, {{double(f0), double(f1)}, {double(b0), double(b1)}, {double(w0), double(w1)}});
      const double best = best_of_all_orders(stages), found = stages.searched().makespan, least = stages.least();
      CHECK(least <= best + 1e-9);
      CHECK(found >= best - 1e-9);
      CHECK(found <= 1.1 * best);
      tight += least > best - 1e-9 && found < best + 1e-9;
    }
  CHECK(tight >= 4);
}

TEST_CASE("search of stages: equal passes take no longer than the formula of zero bubble") {
  for (const int stages : {2, 3, 4, 8})
    for (const int micro_batches : {8, 16}) {
      INFO(stages << " stages, " << micro_batches << " micro batches");
      const std::vector<double> equal(std::size_t(stages), 1.0);
      const Stages pipeline(micro_batches, {equal, equal, equal});
      const double formula = 3 * micro_batches + (stages - 1);  // M (F + B + W) + (p - 1) (F + B - W)
      // With few micro batches the list schedule spends up to two passes more.
      CHECK(pipeline.searched().makespan <= formula + (micro_batches < 2 * stages ? 2 : 0) + 1e-9);
      CHECK(pipeline.least() <= formula + 1e-9);
      CHECK(pipeline.least() >= 3 * micro_batches);
    }
}

TEST_CASE("search of stages: messages that take long are met by more micro batches ahead") {
  const std::vector<double> equal(4, 1.0);
  const Stages pipeline(16, {equal, equal, equal, 0.75});
  const double found = pipeline.searched().makespan;
  Stages instant(16, {equal, equal, equal});
  // As many micro batches as 1F1B and zero bubble run ahead would leave the message's way back and forth open.
  CHECK(found < 1.15 * instant.searched().makespan);
}

TEST_CASE("search of stages: arenas stay within the limit, and a limit that nothing keeps gives nothing") {
  const std::vector<double> equal(4, 1.0);
  const Stages pipeline(8, {equal, equal, equal});
  const auto arena = [](const schedule::PipelineOrder& of) {
    return schedule::plan_memory(of.program, of.needed).arena_bytes;
  };
  const schedule::StagesOrder free = pipeline.searched();
  std::int64_t most = 0, least_of_most = 0;
  for (const auto& of : free.stages) most = std::max(most, arena(of));
  const schedule::StagesOrder bound = pipeline.searched(most - 64);
  for (const auto& of : bound.stages) least_of_most = std::max(least_of_most, arena(of));
  CHECK(least_of_most <= most - 64);
  CHECK(bound.makespan >= free.makespan);
  const auto work = pipeline.work();
  // The last: what a stage keeps from step to step exceeds its device's memory alone.
  for (const std::int64_t nothing : {1, 0, -1'000'000})
    CHECK_FALSE(
        schedule::StagesSearch(work, work, pipeline.mesh).within(std::vector<std::int64_t>{most, nothing, most, most}));
}

TEST_CASE("search of stages: the plans end together, and two searches find the same") {
  const std::vector<double> equal(4, 1.0);
  const Stages pipeline(8, {equal, {2, 1, 3, 1}, equal, 0.5});
  const schedule::StagesOrder found = pipeline.searched(), again = pipeline.searched();
  std::vector<ir::Plan> plans;
  for (std::size_t s = 0; s < found.stages.size(); ++s) {
    CHECK(ir::print(found.stages[s].program) == ir::print(again.stages[s].program));
    plans.push_back(schedule::plan_memory(found.stages[s].program, found.stages[s].needed));
    const Status sound = ir::verify(plans.back());
    INFO((sound.ok() ? "" : sound.error().message));
    CHECK(sound.ok());
  }
  CHECK(ir::verify_ranks({{&plans[0], &plans[1], &plans[2], &plans[3]}}, pipeline.mesh).ok());
}
