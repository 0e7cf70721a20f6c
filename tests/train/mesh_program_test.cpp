// Gradients and norms on meshes: which group of ranks an all-reduce goes over.
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "lancet/ir/groups.h"
#include "lancet/model/transformer.h"
#include "lancet/passes/passes.h"
#include "small_model.h"
#include "steps/support.h"

namespace lancet {
namespace {

// The labels of the collectives, without the layer's number, by the text of their axes.
std::map<std::string, std::set<std::string>> collectives_of(const ir::Program& program) {
  std::map<std::string, std::set<std::string>> labels;
  for (const ir::Instruction& at : program.instructions)
    if (at.stream != ir::Stream::compute)
      labels[std::string(ir::axes_text(at))].insert(at.label.substr(0, at.label.find('.')));
  return labels;
}

ir::Program step_on(const ir::Mesh& mesh, bool sequence_parallel = false) {
  const std::int64_t ranks = mesh.size(ir::batch_axes);
  const model::BuildOptions build{.batch = 2 * ranks,
                                  .sequence = 8,
                                  .groups = ranks,
                                  .loads = ranks,
                                  .tensor_ranks = mesh[ir::Axis::tensor],
                                  .sequence_parallel = sequence_parallel};
  config::Model model = test::small_model();
  model.experts_per_rank.reset();
  model.num_local_experts = 4;
  passes::OptimizeOptions options;
  options.mesh = mesh;
  options.weight_decay = 0.1;
  const ir::Program backward = test::of_rank(passes::autodiff(model::build_forward(model, build)), mesh);
  return passes::optimize(passes::sync(backward, mesh, 1 << 20), options);
}

// The parameters whose update decays them.
std::set<std::string> decayed(const ir::Program& step) {
  std::set<std::string> names;
  for (const ir::Instruction& at : step.instructions)
    if (at.op == "adamw" && at.attributes.real("weight_decay", 0) > 0) names.insert(step[at.operands[0]].name);
  return names;
}

using Labels = std::map<std::string, std::set<std::string>>;

}  // namespace

TEST_CASE("sync: experts' gradients are summed over data, and their norm over expert") {
  const ir::Program step = step_on({{1, 2, 2, 1}});
  CHECK(collectives_of(step) == Labels{{"", {"bucket", "metrics"}}, {"data", {"bucket"}}, {"expert", {"h", "norm"}}});
  std::int64_t shared = 0, local = 0;
  for (const ir::Instruction& at : step.instructions) {
    if (at.stream != ir::Stream::reduce || !at.label.starts_with("bucket")) continue;
    for (const ir::TensorId id : at.operands) (ir::axes_text(at).empty() ? shared : local) += ir::bytes(step.type(id));
  }
  std::int64_t all_shared = 0, all_local = 0;
  for (const ir::Tensor& tensor : step.tensors)
    if (tensor.kind == ir::TensorKind::parameter)
      (tensor.sharding ? all_local : all_shared) += 4 * tensor.type.shape.elements();
  CHECK(shared == all_shared);
  CHECK(local == all_local);
}

TEST_CASE("sync: groups of all ranks and of one rank are not named") {
  CHECK(collectives_of(step_on(ir::of_experts(4))) == Labels{{"", {"bucket", "h", "metrics", "norm"}}});
  CHECK(collectives_of(step_on({{1, 4, 1, 1}})) == Labels{{"", {"bucket", "metrics"}}});
  CHECK(collectives_of(step_on({})).empty());
}

TEST_CASE("sync: the same Program from equal meshes, whatever the sizes of the groups") {
  const auto attributes = [](const ir::Program& program) {
    std::vector<std::string> all;
    for (const ir::Instruction& at : program.instructions) all.push_back(at.op + " " + std::string(ir::axes_text(at)));
    return all;
  };
  CHECK(attributes(step_on({{1, 2, 2, 1}})) == attributes(step_on({{1, 8, 4, 1}})));
}

TEST_CASE("optimize: the same weights decay on every mesh, also those that are read in another sharding") {
  const std::set<std::string> expected = decayed(step_on({}));
  CHECK(expected.contains("wpe.weight"));
  CHECK(expected.contains("h.0.moe.gate.weight"));
  CHECK_FALSE(expected.contains("ln_f.weight"));
  for (const ir::Mesh& mesh : {ir::Mesh{{1, 2, 2, 1}}, ir::Mesh{{1, 1, 1, 2}}, ir::Mesh{{1, 2, 2, 2}}})
    for (const bool sequence_parallel : {false, true}) CHECK(decayed(step_on(mesh, sequence_parallel)) == expected);
}

}  // namespace lancet
