// The dW schedule on Programs: which instructions move, where they go, and that the results do not change.
#include <algorithm>
#include <array>
#include <random>
#include <set>

#include "golden/golden.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ir/plan.h"
#include "lancet/ops/catalogue.h"
#include "lancet/schedule/overlap.h"
#include "lancet/schedule/simulate.h"
#include "schedule/assign_dw.h"
#include "steps/fake_costs.h"
#include "steps/models.h"
#include "steps/support.h"

using namespace lancet;
using namespace lancet::test;
using cost::OpCost;
using schedule::DwReport;

namespace {

passes::OptimizeOptions options(double clip_grad) {
  passes::OptimizeOptions o;
  o.clip_grad = clip_grad;
  o.mesh = ir::of_experts(2);
  return o;
}

ir::Program step(const ir::Program& forward, double clip_grad = 0, std::int64_t bucket_bytes = 20'000) {
  return passes::optimize(
      passes::sync(of_rank(passes::autodiff(forward), ir::of_experts(2)), ir::of_experts(2), bucket_bytes),
      options(clip_grad));
}

double makespan(const ir::Program& p, const FakeCosts& costs) {
  return schedule::simulate(p, ir::dependencies(p), loads_of(p, costs), costs.beside, costs.launch).makespan;
}

ir::Program scheduled(const ir::Program& p, const FakeCosts& costs, DwReport* report = nullptr) {
  return schedule::dw_schedule(p, loads_of(p, costs), costs.beside, report);
}

std::multiset<std::string> lines_of(const ir::Program& p) {
  std::multiset<std::string> lines;
  for (const ir::Instruction& i : p.instructions) lines.insert(ir::print(p, i));
  return lines;
}

std::set<std::pair<std::string, std::string>> edges_of(const ir::Program& p) {
  std::set<std::pair<std::string, std::string>> result;
  const auto dependencies = ir::dependencies(p);
  for (std::size_t i = 0; i < dependencies.size(); ++i)
    for (ir::InstructionId j : dependencies[i])
      result.insert({ir::print(p, p.instructions[j.index()]), ir::print(p, p.instructions[i])});
  return result;
}

// Checks that in any order each instruction reads what it read before: the same memory, last written by the same
// instruction.
void check_same_step(const ir::Program& before, const ir::Program& after) {
  require_sound(ops::verify(after));
  REQUIRE(lines_of(before) == lines_of(after));
  REQUIRE(edges_of(before) == edges_of(after));
}

// Instructions of all streams and roles on values that share one another's memory, and on a few that are updated.
ir::Program random_program(std::uint32_t seed) {
  std::mt19937 random(seed);
  auto below = [&](std::size_t n) { return std::size_t(random() % n); };
  ir::Program p;
  std::vector<ir::TensorId> readable;
  for (const char* name : {"a", "b", "c"})
    readable.push_back(p.add_named(ir::TensorKind::parameter, name, {DType::f32, {4}}));
  const std::size_t count = 20 + below(60);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t kind = below(10);
    ir::Instruction instruction{"f", {}, {}, {}, {}, ir::Stream::compute, ir::Role::forward, std::to_string(i)};
    instruction.role =
        std::array{ir::Role::forward, ir::Role::dx, ir::Role::dw, ir::Role::dw, ir::Role::update}[below(5)];
    if (kind == 0) instruction.stream = ir::Stream::reduce;
    if (kind <= 2 && kind > 0) {
      instruction.stream = ir::Stream::expert;
      instruction.op = "all_to_all";
    }
    for (std::size_t k = 1 + below(2); k > 0; --k) {
      const ir::TensorId id =
          readable[below(4) == 0 ? below(readable.size())
                                 : readable.size() - 1 - below(std::min<std::size_t>(4, readable.size()))];
      if (std::find(instruction.operands.begin(), instruction.operands.end(), id) == instruction.operands.end())
        instruction.operands.push_back(id);
    }
    const ir::TensorId first = instruction.operands[0];
    if (p[p.root(first)].kind == ir::TensorKind::parameter) {
      if (below(3) == 0) instruction.writes.push_back(first);
    } else if (below(4) == 0) {  // in place: values that shared the memory are gone
      instruction.results.push_back(p.add_value({DType::f32, {4}}, first));
      std::erase_if(readable, [&](ir::TensorId id) { return p.root(id) == p.root(first); });
    }
    if (instruction.results.empty()) instruction.results.push_back(p.add_value({DType::f32, {4}}));
    readable.push_back(instruction.results[0]);
    p.instructions.push_back(instruction);
  }
  return p;
}

}  // namespace

TEST_CASE("dW schedule: random programs keep their results") {
  int moved = 0, covering = 0;
  for (std::uint32_t seed = 1; seed <= 200; ++seed) {
    INFO("seed " << seed);
    const ir::Program before = random_program(seed);
    require_sound(ir::verify(before));
    std::mt19937 random(seed);
    std::vector<cost::OpCost> op_costs;
    for (const ir::Instruction& i : before.instructions) {
      const double ms = random() % 6 == 0 ? 0 : double(random() % 100) / 10;
      op_costs.push_back({ms, i.stream == ir::Stream::compute ? 0 : ms / 8});
    }
    DwReport report;
    const ir::Program after = schedule::dw_schedule(before, op_costs, {0.9, 0.5}, &report);
    require_sound(ir::verify(after));
    REQUIRE(lines_of(before) == lines_of(after));
    REQUIRE(edges_of(before) == edges_of(after));
    moved += ir::print(before) != ir::print(after);
    covering += report.covered_ms > 0;
  }
  CHECK(moved <= covering);
  CHECK(moved > 100);
}

TEST_CASE("labels agree with a search over paths") {
  const ir::Program p = step(model(2));
  const auto needed = ir::dependencies(p);
  std::vector<ir::InstructionId> all_to_alls;
  for (std::size_t i = 0; i < p.instructions.size(); ++i)
    if (ops::kind(p.instructions[i]) == ops::Kind::all_to_all) all_to_alls.push_back({std::int32_t(i)});
  REQUIRE(all_to_alls.size() == 8);
  const schedule::Labels labels(needed, all_to_alls);
  std::vector<std::set<int>> reached(p.instructions.size());  // instructions with a path to it, and itself
  for (std::size_t i = 0; i < reached.size(); ++i) {
    reached[i].insert(int(i));
    for (ir::InstructionId j : needed[i]) reached[i].insert(reached[j.index()].begin(), reached[j.index()].end());
  }
  int free = 0;
  for (std::size_t i = 0; i < reached.size(); ++i) {
    for (std::size_t a = 0; a < all_to_alls.size(); ++a) {
      const std::size_t other = all_to_alls[a].index();
      const bool expected = !reached[i].count(int(other)) && !reached[other].count(int(i));
      REQUIRE(labels.overlappable({std::int32_t(i)}, a) == expected);
      free += expected;
    }
  }
  REQUIRE(free > 100);
}

TEST_CASE("dW schedule: one MoE layer") {
  FakeCosts costs;
  DwReport report;
  const ir::Program before = step(program(moe), 0, 1 << 30);
  const ir::Program after = scheduled(before, costs, &report);
  check_same_step(before, after);
  require_golden("dw_schedule_moe.ir", text_of(after));
  CHECK(makespan(after, costs) < makespan(before, costs));
}

TEST_CASE("dW schedule: the small model, for many networks and core shares") {
  for (double clip_grad : {0.0, 1.0})
    for (double network : {1e4, 3e4, 1e5})
      for (double core : {0.0, 2.0}) {
        INFO("clip " << clip_grad << ", network " << network << ", core " << core);
        FakeCosts costs;
        costs.network_bytes_per_ms = network;
        costs.core = core * 1e6 / network / 10;  // tenths of the network's time
        costs.launch = 0.003;
        DwReport report;
        const ir::Program before = step(model(2), clip_grad);
        const ir::Program after = scheduled(before, costs, &report);
        check_same_step(before, after);
        CHECK(makespan(after, costs) < makespan(before, costs));
        CHECK(report.movable == (clip_grad > 0 ? 33 : 33 + 8));  // unclipped, also the experts' updates
        CHECK(ir::print(scheduled(before, costs)) == ir::print(after));
        CHECK(report.covered_ms > 0);
        CHECK(report.covered_ms <= report.slack_ms * (1 + 1e-9));
      }
}

TEST_CASE("dW schedule: programs that stay unchanged") {
  FakeCosts costs;
  DwReport report;
  const ir::Program dense = step(program(tied));  // no all-to-all
  CHECK(ir::print(scheduled(dense, costs, &report)) == ir::print(dense));
  CHECK(report.covered_ms == 0);
  const ir::Program one =
      passes::optimize(of_rank(passes::autodiff(model(1)), {}), options(0));  // one rank: nothing on the network
  costs.network_start_ms = 0;
  costs.network_bytes_per_ms = 1e30;
  CHECK(ir::print(scheduled(one, costs)) == ir::print(one));
  const ir::Program forward = of_rank(model(2), ir::of_experts(2));  // only the auxiliary losses could move
  costs = {};
  const ir::Program after = scheduled(forward, costs, &report);
  check_same_step(forward, after);
  CHECK(report.movable == 2);
}

TEST_CASE("dW schedule: a pipelined forward pass keeps its order") {
  // Two parts: %4 needs both gates, so it may run under the second all-to-all and later ones, but not the first.
  auto parsed = ir::parse(R"(program parts
input @x : f32[4]
%0 : f32[4] = gate(@x)  # compute forward gate.0
%1 : f32[4] = all_to_all(%0)  # expert forward 0
%2 : f32[4] = gate(%0)  # compute forward gate.1
%3 : f32[4] = all_to_all(%2)  # expert forward 1
%4 : f32[4] = experts(%1)  # compute forward experts.0
%5 : f32[4] = experts(%3)  # compute forward experts.1
%6 : f32[4] = loss(%4, %5)  # compute forward loss
%7 : f32[4] = aux_loss_dx(%0, %2)  # compute dx aux
%8 : f32[4] = backward(%6, %7)  # compute dx backward
output y = %8
)");
  if (!parsed.ok()) FAIL(parsed.error().message);
  const std::vector<OpCost> op_costs{{1}, {4}, {1}, {4}, {1}, {1}, {1}, {2}, {1}};
  DwReport report;
  const ir::Program after = schedule::dw_schedule(*parsed, op_costs, {1, 1}, &report);
  std::string order;
  for (const ir::Instruction& i : after.instructions) order += i.op + " ";
  CHECK(order == "gate all_to_all gate all_to_all aux_loss_dx experts experts loss backward ");
  CHECK(report.movable == 1);
}
