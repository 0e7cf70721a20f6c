#include "lancet/placement/graph.h"

#include <catch2/catch.hpp>

#include <fstream>
#include <iterator>

#include "lancet/model/gpt2_moe.h"
#include "lancet/placement/linear_solver.h"
#include "lancet/placement/milp.h"
#include "lancet/placement/solvers.h"
#include "support.h"

namespace lancet::placement {
namespace {

config::Config small_config(const std::vector<std::string>& overrides = {}) {
  auto config =
      config::parse(R"({"model": {"n_layer": 4, "n_head": 2, "n_embd": 32, "n_positions": 16, "vocab_size": 300,
      "moe_layer_freq": 2, "num_local_experts": 4}, "data": {"synthetic": true},
      "train": {"steps": 1, "seq_len": 16, "micro_batch_size": 4, "lr": 1e-3, "clip_grad": 1.0}})",
                    "test", overrides);
  REQUIRE(config.ok());
  return *config;
}

Cluster shipped(const std::string& name) {
  auto cluster = read_cluster(LANCET_SOURCE_DIR "/configs/clusters/" + name + ".json");
  REQUIRE(cluster.ok());
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
  const auto graph = model_graph(config, cluster, Task::forward);
  REQUIRE(graph.ok());
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
  const auto graph = model_graph(config, shipped("moirai-inter"), Task::training);
  REQUIRE(graph.ok());
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
  const auto found = list_search(problem, {.seconds = 5, .moves = 50});
  REQUIRE(found.ok());
  test::check_sound(problem, *found);
}

TEST_CASE("coarsening a model makes fewer ops with the same work") {
  for (const Task task : {Task::forward, Task::training}) {
    const auto graph = model_graph(small_config(), shipped("moirai-intra"), task);
    REQUIRE(graph.ok());
    const Coarse coarse = coarsen(*graph);
    CHECK(coarse.problem.op_count() < (task == Task::forward ? 0.7 : 0.95) * graph->problem.op_count());
    CHECK(mb_of(coarse.problem) == Approx(mb_of(graph->problem)));
    const auto found = etf(coarse.problem);
    REQUIRE(found.ok());
    test::check_sound(coarse.problem, *found);
    test::check_sound(graph->problem, refine(graph->problem, coarse, *found));
  }
}

TEST_CASE("memory and slow links decide on the shipped clusters") {
  const auto config = config::load(LANCET_SOURCE_DIR "/configs/gpt2-s-moe.json");
  REQUIRE(config.ok());
  for (const auto& [name, used] : {std::pair("memory-split", 3), {"one-device", 1}}) {
    const auto graph = model_graph(*config, shipped(name), Task::forward);
    REQUIRE(graph.ok());
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
  const auto config = config::parse(text, "gpt2-s-moe.json");
  REQUIRE(config.ok());
  for (const auto& [layers, ops] : {std::pair{4, 23}, {8, 43}}) {
    config::Config of = *config;
    of.model.n_layer = layers;
    const auto graph = model_graph(of, shipped("memory-split"), Task::forward);
    REQUIRE(graph.ok());
    const Problem problem = coarsen(*graph).problem;
    INFO(layers << " layers");
    CHECK(problem.op_count() == ops);
    const auto cold = solve_milp(problem, {.seconds = 100});
    REQUIRE(cold.ok());
    CHECK(cold->end == MilpAnswer::End::proof);
    CHECK(cold->placement.makespan_ms <= list_search(problem, {.moves = 20'000})->makespan_ms * (1 + 1e-5));
  }
}

}  // namespace lancet::placement
