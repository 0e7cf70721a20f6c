#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>

#include "good.h"
#include "lancet/model/transformer.h"
#include "lancet/placement/graph.h"
#include "lancet/placement/linear_solver.h"
#include "lancet/placement/solvers.h"
#include "support.h"

namespace lancet::placement {
namespace {

config::Config small_config(const std::vector<std::string>& overrides = {}) {
  auto config = lancet::test::good(
      config::parse(R"({"model": {"n_layer": 4, "n_head": 2, "n_embd": 32, "n_positions": 16, "vocab_size": 300,
      "moe_layer_freq": 2, "num_local_experts": 4}, "data": {"synthetic": true},
      "train": {"steps": 1, "seq_len": 16, "micro_batch_size": 4, "lr": 1e-3, "clip_grad": 1.0}})",
                    "test", overrides));
  return *config;
}

Cluster shipped(const std::string& name) {
  auto cluster = lancet::test::good(read_cluster(LANCET_SOURCE_DIR "/configs/clusters/" + name + ".json"));
  return *cluster;
}

double mb_of(const Problem& problem) {
  double mb = 0;
  for (const Op& op : problem.ops) mb += op.mb;
  return mb;
}

int op_named(const Problem& problem, const std::string& name) {
  for (int op = 0; op < problem.op_count(); ++op)
    if (problem.ops[std::size_t(op)].name == name) return op;
  FAIL("no op " << name);
  return -1;
}

double parameter_mb(const config::Config& config) {
  double bytes = 0;
  for (const model::Parameter& parameter : model::parameters(config.model))
    bytes += 4.0 * double(parameter.shape.elements());
  return bytes * 1e-6;
}

}  // namespace

TEST_CASE("the forward graph has the model's ops with their times, bytes and memory") {
  const config::Config config = small_config();
  const Cluster cluster = shipped("moirai-inter");
  const auto graph = lancet::test::good(model_graph(config, cluster, Task::forward));
  const Problem& problem = graph->problem;
  CHECK(graph->types.size() == problem.ops.size());
  const int embedding = op_named(problem, "wte embedding"), c_attn = op_named(problem, "h.1.attn.c_attn linear");
  CHECK(embedding == 0);
  CHECK(graph->types[std::size_t(c_attn)] == "linear");
  for (const Flow& flow : problem.flows) CHECK(flow.from < flow.to);
  for (const Op& op : problem.ops) {
    CHECK(op.group == -1);
    CHECK(op.ms.size() == 4);
  }
  // x of the first layer: [4,16,32] in fp32, to the norm before attention and to the residual behind it.
  int readers = 0;
  for (const Flow& flow : problem.flows)
    if (flow.from == embedding) {
      ++readers;
      CHECK(flow.mb == Approx(4 * 16 * 32 * 4e-6));
    }
  CHECK(readers == 2);
  // A P4 is slower than a 2080 Ti wherever an op does anything.
  const std::vector<double>& ms = problem.ops[std::size_t(c_attn)].ms;
  CHECK(ms[2] > ms[0]);
  // Weight [96,32], bias, and the result [4,16,96].
  CHECK(problem.ops[std::size_t(c_attn)].mb == Approx((96 * 32 + 96 + 4 * 16 * 96) * 4e-6));
  // The head holds a copy of the embedding.
  CHECK(mb_of(problem) > parameter_mb(config) + 300 * 32 * 4e-6);
}

TEST_CASE("the training graph keeps what trains together in one place") {
  const config::Config config = small_config();
  const auto graph = lancet::test::good(model_graph(config, shipped("moirai-inter"), Task::training));
  const Problem& problem = graph->problem;
  const auto group = [&](const char* name) { return problem.ops[std::size_t(op_named(problem, name))].group; };
  CHECK(group("h.1.mlp.c_fc linear") == group("h.1.mlp.c_fc linear_dw"));
  CHECK(group("h.1.mlp.c_fc linear") == group("h.1.mlp.c_fc linear_dx"));
  CHECK(group("h.1.mlp.c_fc linear") == group("h.1.mlp.c_fc.weight adamw"));
  CHECK(group("h.1.mlp.c_fc linear") != group("h.1.mlp.c_proj linear"));
  CHECK(group("wte embedding") == group("lm_head linear"));  // they train one table
  for (const std::string& type : graph->types) CHECK(type != "squared_norm");
  for (const Flow& flow : problem.flows) CHECK(flow.from < flow.to);
  // Weights, gradients and two moments, besides activations.
  CHECK(mb_of(problem) > 4 * parameter_mb(config));
  CHECK(mb_of(problem) < 4 * parameter_mb(config) + 4);
  const auto found = lancet::test::good(list_search(problem, {.seconds = 5, .moves = 50}));
  test::check_sound(problem, *found);
}

TEST_CASE("coarsening a model makes fewer ops with the same work") {
  for (const Task task : {Task::forward, Task::training}) {
    const auto graph = lancet::test::good(model_graph(small_config(), shipped("moirai-intra"), task));
    const Coarse coarse = coarsen(*graph);
    CHECK(coarse.problem.op_count() < (task == Task::forward ? 0.7 : 0.95) * graph->problem.op_count());
    CHECK(mb_of(coarse.problem) == Approx(mb_of(graph->problem)));
    const auto found = lancet::test::good(etf(coarse.problem));
    test::check_sound(coarse.problem, *found);
    test::check_sound(graph->problem, refine(graph->problem, coarse, *found));
  }
}

TEST_CASE("memory and slow links decide on the shipped clusters") {
  const auto config = lancet::test::good(config::load(LANCET_SOURCE_DIR "/configs/gpt2-s-moe.json"));
  for (const auto& [name, used] : {std::pair("memory-split", 3), {"one-device", 1}}) {
    const auto graph = lancet::test::good(model_graph(*config, shipped(name), Task::forward));
    const Coarse coarse = coarsen(*graph);
    const auto found = list_search(coarse.problem, {.seconds = 5, .moves = 2000});
    INFO(name);
    REQUIRE(found.ok());
    test::check_sound(coarse.problem, *found);
    std::vector<bool> is_used(3, false);
    for (const int device : found->device) is_used[std::size_t(device)] = true;
    CHECK(std::count(is_used.begin(), is_used.end(), true) == used);
  }
}

TEST_CASE("the integer program proves the optimum of models' graphs without a start") {
  if (linear_solver().empty()) {
    WARN("SKIPPED: this build has no CBC");
    return;
  }
  std::ifstream file(LANCET_SOURCE_DIR "/configs/gpt2-s-moe.json");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const auto config = lancet::test::good(config::parse(text, "gpt2-s-moe.json"));
  for (const auto& [layers, ops] : {std::pair{4, 23}, {8, 43}}) {
    config::Config of = *config;
    of.model.n_layer = layers;
    const auto graph = lancet::test::good(model_graph(of, shipped("memory-split"), Task::forward));
    const Problem problem = coarsen(*graph).problem;
    INFO(layers << " layers");
    CHECK(problem.op_count() == ops);
    const auto cold = lancet::test::good(solve_milp(problem, {.seconds = 100}));
    CHECK(cold->end == MilpAnswer::End::proof);
    CHECK(cold->placement.makespan_ms <= list_search(problem, {.moves = 20'000})->makespan_ms * (1 + 1e-5));
  }
}

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
