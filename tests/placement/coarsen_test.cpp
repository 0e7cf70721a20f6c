#include "lancet/placement/graph.h"

#include <catch2/catch.hpp>

#include "support.h"

namespace lancet::placement {
namespace {

using test::chain;
using test::problem_of;

// Ops of the given types, of 1 and 2 ms on two devices and 1 MB.
ModelGraph graph_of_types(const std::vector<std::string>& types, const std::vector<Flow>& flows) {
  return {problem_of(std::vector<std::vector<double>>(types.size(), {1, 2}), flows), types};
}

const std::vector<FusionRule> conv_rules = {{"", {"conv", "bn", "add", "relu"}}, {"", {"conv", "bn"}}};

}  // namespace

TEST_CASE("a chain that matches a rule becomes one op, the first rule first") {
  const ModelGraph graph = graph_of_types({"conv", "bn", "relu", "conv", "bn", "add", "relu"}, chain(7));
  const Coarse coarse = coarsen(graph, conv_rules);
  CHECK(coarse.members == std::vector<std::vector<int>>{{0, 1}, {2}, {3, 4, 5, 6}});
  CHECK(coarse.problem.ops[2].name == "op3 + op4 + op5 + op6");
  CHECK(coarse.problem.ops[2].ms == std::vector<double>{4, 8});
  CHECK(coarse.problem.ops[2].mb == 4);
  REQUIRE(coarse.problem.flows.size() == 2);
  CHECK(coarse.problem.flows[1].from == 1);
  CHECK(coarse.problem.flows[1].to == 2);
  // Without rules nothing is fused.
  CHECK(coarsen(graph, {}).problem.op_count() == 7);
}

// Moirai, Figure 7: add feeds relu and conv; the edges that leave it are of the kind multi-outputs.
TEST_CASE("several inputs are fused, several outputs never") {
  const std::vector<FusionRule> rules = {
      {"", {"conv", "bn", "add", "relu"}}, {"", {"add", "relu"}}, {"", {"conv", "bn"}}};
  //   add0 -> relu1 ---------------> add6 -> relu7
  //   add0 -> conv2 -> bn3 -> conv4 -> bn5 -> add6
  const ModelGraph graph =
      graph_of_types({"add", "relu", "conv", "bn", "conv", "bn", "add", "relu"},
                     {{0, 1, 1}, {0, 2, 1}, {2, 3, 1}, {3, 4, 1}, {4, 5, 1}, {1, 6, 1}, {5, 6, 1}, {6, 7, 1}});
  const Coarse coarse = coarsen(graph, rules);
  CHECK(coarse.members == std::vector<std::vector<int>>{{0}, {1}, {2, 3}, {4, 5, 6, 7}});
}

TEST_CASE("a partial match is released") {
  // conv bn add is no rule: conv bn is fused by the second one, and add starts a match of its own.
  const std::vector<FusionRule> rules = {
      {"", {"conv", "bn", "add", "relu"}}, {"", {"conv", "bn"}}, {"", {"add", "tanh"}}};
  const Coarse coarse = coarsen(graph_of_types({"conv", "bn", "add", "tanh"}, chain(4)), rules);
  CHECK(coarse.members == std::vector<std::vector<int>>{{0, 1}, {2, 3}});
}

TEST_CASE("groups of fused ops become one") {
  ModelGraph graph = graph_of_types({"conv", "bn", "bn_dx", "conv_dx"}, {{0, 1, 1}, {1, 2, 1}, {0, 2, 1}, {2, 3, 1}});
  for (const auto& [op, group] : {std::pair(0, 4), {3, 4}, {1, 7}, {2, 7}})
    graph.problem.ops[std::size_t(op)].group = group;
  const Coarse coarse = coarsen(graph, conv_rules);
  // conv has two readers, both in the unit of bn.
  CHECK(coarse.members == std::vector<std::vector<int>>{{0, 1}, {2}, {3}});
  for (const Op& op : coarse.problem.ops) CHECK(op.group == 4);
  CHECK(coarse.problem.flows[0].mb == 2);
}

TEST_CASE("a chain that would close a cycle is released") {
  //   p0 -> q2 -> r5     x1 -> y3 -> z4     p0 -> y3, z4 -> r5
  // q2 and y3 are a group, so that p0 has one reader besides it. With p q r fused, y3 would come after and before it.
  ModelGraph graph = graph_of_types({"p", "x", "q", "y", "z", "r"},
                                    {{0, 2, 1}, {0, 3, 1}, {1, 3, 1}, {2, 5, 1}, {3, 4, 1}, {4, 5, 1}});
  graph.problem.ops[2].group = graph.problem.ops[3].group = 0;
  const std::vector<FusionRule> rules = {{"", {"p", "q", "r"}}, {"", {"x", "y", "z"}}};
  CHECK(coarsen(graph, rules).members == std::vector<std::vector<int>>{{0}, {1, 3, 4}, {2}, {5}});
}

TEST_CASE("a placement of the coarse graph is one of the fine graph") {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    ModelGraph graph{test::random_problem(seed, 30, 3, 1.2, seed % 2 == 0), {}};
    for (int op = 0; op < 30; ++op) graph.types.push_back((op * 7 + int(seed)) % 3 == 0 ? "conv" : "bn");
    const std::vector<FusionRule> rules = {{"", {"conv", "bn", "bn"}}, {"", {"conv", "bn"}}, {"", {"bn", "bn"}}};
    const Coarse coarse = coarsen(graph, rules);
    INFO("seed " << seed);
    CHECK(coarse.problem.op_count() < 30);
    std::vector<int> device, order;
    for (int op = 0; op < coarse.problem.op_count(); ++op) order.push_back(op), device.push_back(op % 3);
    for (const auto& unit : units_of(coarse.problem).ops)
      for (const int op : unit) device[std::size_t(op)] = device[std::size_t(unit.front())];
    const Placement placed = timetable(coarse.problem, device, order);
    for (Device& of : graph.problem.devices) of.memory_mb = 1e6;
    const Placement fine = refine(graph.problem, coarse, placed);
    test::check_sound(graph.problem, fine);
    for (std::size_t op = 0; op < device.size(); ++op)
      for (const int member : coarse.members[op]) CHECK(fine.device[std::size_t(member)] == device[op]);
  }
}

}  // namespace lancet::placement
