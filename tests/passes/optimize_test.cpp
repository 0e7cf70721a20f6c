// Which parameters the optimizer treats in which way.
#include <fmt/format.h>
#include <map>
#include <set>

#include "lancet/base/flat_shard.h"
#include "lancet/ir/groups.h"
#include "steps/models.h"
#include "steps/support.h"

namespace lancet {

using namespace test;

TEST_CASE("optimize: weights of products and embeddings decay, layer norms and biases do not") {
  passes::OptimizeOptions options;
  options.weight_decay = 0.25;
  for (const bool fused : {false, true}) {
    const ir::Program backward = of_rank(passes::autodiff(model(1)), {});
    const ir::Program step = passes::optimize(fused ? passes::fuse(backward) : backward, options);
    std::map<std::string, double> decay;
    for (const ir::Instruction& at : step.instructions)
      if (at.attributes.has("weight_decay")) decay[at.label] = at.attributes.real("weight_decay");
    CHECK(decay.size() == 2 + 2 + 2 * 13 + 2 * 12);
    for (const char* name : {"wte.weight", "wpe.weight", "h.0.attn.c_attn.weight", "h.0.attn.c_proj.weight",
                             "h.0.moe.gate.weight", "h.0.moe.experts.c_fc.weight", "h.1.mlp.c_fc.weight"})
      CHECK(decay.at(name) == 0.25);
    for (const char* name : {"ln_f.weight", "ln_f.bias", "h.3.ln_1.weight", "h.3.ln_2.bias", "h.0.attn.c_attn.bias",
                             "h.0.moe.experts.c_proj.bias", "h.1.mlp.c_fc.bias"})
      CHECK(decay.at(name) == 0);
  }
}

TEST_CASE("optimize: the states say what they are, and of which parameter") {
  for (const bool accumulate : {false, true}) {
    const ir::Program step = passes::optimize(of_rank(passes::autodiff(program(moe), accumulate), {}), {});
    std::map<ir::StateKind, int> count;
    for (const ir::Tensor& tensor : step.tensors) {
      if (tensor.kind != ir::TensorKind::state) continue;
      ++count[tensor.state];
      CHECK(std::any_of(step.tensors.begin(), step.tensors.end(), [&](const ir::Tensor& p) {
        return p.kind == ir::TensorKind::parameter && ir::state_name(p.name, tensor.state) == tensor.name;
      }));
    }
    using Kind = ir::StateKind;
    CHECK(count[Kind::first_moment] == 7);
    CHECK(count[Kind::second_moment] == 7);
    CHECK(count[Kind::master] == 4);  // of the weights in bf16
    CHECK(count[Kind::gradient_sum] == (accumulate ? 7 : 0));
    CHECK(count[Kind::other] == 0);
  }
}

// ZeRO-1 in the passes: what sync and optimize make of a step with flat shards.

namespace {

ir::Mesh grid(int data, int expert) {
  ir::Mesh mesh;
  mesh[ir::Axis::data] = data;
  mesh[ir::Axis::expert] = expert;
  return mesh;
}

ir::Program zero_step(const ir::Mesh& mesh, double clip_grad, bool accumulate = false, DType message = DType::f32) {
  passes::OptimizeOptions options;
  options.clip_grad = clip_grad;
  options.mesh = mesh;
  const ir::Program backward = of_rank(passes::autodiff(program(moe), accumulate), mesh);
  const ir::Program step =
      passes::optimize(passes::sync(backward, mesh, 1 << 20, true, {.shards = true, .message = message}), options);
  require_sound(ops::verify(step));
  return step;
}

std::vector<const ir::Instruction*> calls(const ir::Program& step, std::string_view op) {
  std::vector<const ir::Instruction*> found;
  for (const ir::Instruction& at : step.instructions)
    if (at.op == op) found.push_back(&at);
  return found;
}

}  // namespace

TEST_CASE("zero: on two ranks the dense parameters have flat shards, and experts of one rank stay whole") {
  const ir::Program step = zero_step(grid(1, 2), 1);
  for (const ir::Tensor& tensor : step.tensors) {
    if (tensor.kind != ir::TensorKind::state) continue;
    const ir::Tensor& parameter = step[step.find(tensor.name.substr(0, tensor.name.rfind('.')))];
    INFO(tensor.name);
    const bool has_own = parameter.sharding.has_value();
    CHECK(tensor.flat_shard == (has_own ? ir::Axes{} : ir::Axes{ir::Axis::expert}));
    CHECK(tensor.type.shape ==
          (has_own ? parameter.type.shape : Shape{flat_shard_elements(parameter.type.shape.elements(), 2)}));
  }
  CHECK(step.type(step.find("wte.weight.m")) == ir::TensorType{DType::f32, {48}});
  CHECK(calls(step, "reduce_scatter_flat").size() == 1);
  CHECK(calls(step, "all_gather_flat").size() == 2);  // of bf16, and of f32
  CHECK(calls(step, "all_reduce").size() == 2);       // the metrics and the norm
  for (const ir::Instruction* at : calls(step, "adamw"))
    CHECK(at->attributes.has("shards") == !step[at->operands[0]].sharding);
}

TEST_CASE("zero: experts with replicas have shards among these, in collectives of their group") {
  const ir::Program step = zero_step(grid(2, 2), 1);
  std::map<std::string, std::int64_t> groups;
  for (std::string_view op : {"reduce_scatter_flat", "all_gather_flat", "adamw"})
    for (const ir::Instruction* at : calls(step, op))
      groups[fmt::format("{} {}", op, ir::axes_text(*at))] = at->attributes.integer("shards");
  CHECK(groups == std::map<std::string, std::int64_t>{{"reduce_scatter_flat ", 4},
                                                      {"reduce_scatter_flat data", 2},
                                                      {"all_gather_flat ", 4},
                                                      {"all_gather_flat data", 2},
                                                      {"adamw ", 4},
                                                      {"adamw data", 2}});
  CHECK(step.type(step.find("fc.weight.m")) == ir::TensorType{DType::f32, {128}});
  // The norm counts each element once, over all ranks.
  const auto sums = calls(step, "squared_norm");
  REQUIRE(sums.size() == 1);
  CHECK(sums[0]->operands.size() == 7);
}

TEST_CASE("zero: parameters are complete again at the end of the step, each by one all-gather") {
  for (const double clip_grad : {0.0, 1.0}) {
    const ir::Program step = zero_step(grid(2, 2), clip_grad);
    std::multiset<std::string> gathered;
    std::set<std::string> updated;
    for (const ir::Instruction& at : step.instructions) {
      if (at.op == "adamw") updated.insert(step[at.operands[0]].name);
      if (at.op != "all_gather_flat") continue;
      for (const ir::TensorId id : at.operands) {
        CHECK(updated.contains(step[id].name));
        gathered.insert(step[id].name);
      }
    }
    CHECK(gathered == std::multiset<std::string>(updated.begin(), updated.end()));
    CHECK(gathered.size() == 7);
  }
}

TEST_CASE("zero: gradients that add up over micro batches are zeroed after the update") {
  const ir::Program step = zero_step(grid(1, 2), 1, true);
  CHECK(calls(step, "zero").size() == 7);
  for (const ir::Instruction* at : calls(step, "zero"))
    CHECK(step[at->operands[0]].state == ir::StateKind::gradient_sum);
}

TEST_CASE("sync: gradients in bf16 keep their buckets") {
  const ir::Program backward = of_rank(passes::autodiff(program(moe)), grid(1, 2));
  const ir::Program plain = passes::sync(backward, grid(1, 2), 1 << 20);
  const ir::Program rounded = passes::sync(backward, grid(1, 2), 1 << 20, true, {.message = DType::bf16});
  require_sound(ops::verify(rounded));
  REQUIRE(calls(rounded, "all_reduce").size() == calls(plain, "all_reduce").size());
  REQUIRE(calls(plain, "all_reduce")[0]->label == "bucket.0");
  for (std::size_t i = 0; i < calls(plain, "all_reduce").size(); ++i) {
    const ir::Instruction& at = *calls(rounded, "all_reduce")[i];
    CHECK(at.operands == calls(plain, "all_reduce")[i]->operands);
    CHECK(at.attributes.has("message") == at.label.starts_with("bucket."));
  }
  CHECK(calls(zero_step(grid(1, 2), 1, false, DType::bf16), "reduce_scatter_flat")[0]->attributes.text("message") ==
        "bf16");
}

TEST_CASE("sync: a bucket is full with the gradient that reaches its bytes") {
  const std::int64_t most = 20'000;
  const ir::Program step = passes::sync(of_rank(passes::autodiff(model(2)), grid(1, 2)), grid(1, 2), most);
  int buckets = 0, open = 0;
  for (const ir::Instruction* at : calls(step, "all_reduce")) {
    if (!at->label.starts_with("bucket.")) continue;
    std::int64_t bytes = 0;
    for (const ir::TensorId gradient : at->operands) {
      CHECK(bytes < most);
      bytes += ir::bytes(step.type(gradient));
    }
    ++buckets;
    open += bytes < most;
  }
  CHECK(buckets > 3);
  CHECK(open <= 2);  // at the end of the pass, one for each group of ranks
}

TEST_CASE("zero: one rank's step is unchanged") {
  const ir::Program backward = passes::autodiff(program(tied));
  CHECK(ir::print(passes::sync(backward, {}, 1 << 20, true, {.shards = true, .message = DType::bf16})) ==
        ir::print(backward));
}

}  // namespace lancet
