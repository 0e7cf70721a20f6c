// A logical Program, the rank's Program that partition_spmd makes of it, and values for both.
#pragma once
#include <fmt/format.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "lancet/ir/groups.h"
#include "ops/references/reference_ops.h"
#include "passes/choose_rows.h"
#include "steps/support.h"

namespace lancet::test {

inline ir::Mesh mesh_with(int data, int expert, int tensor) {
  ir::Mesh mesh;
  mesh[ir::Axis::data] = data;
  mesh[ir::Axis::expert] = expert;
  mesh[ir::Axis::tensor] = tensor;
  return mesh;
}

inline ir::Program partitioned(const ir::Program& logical, const ir::Mesh& mesh) {
  const auto result = passes::partition_spmd(logical, mesh);
  if (!result.ok()) FAIL(result.error().message);
  require_sound(ops::verify(*result));
  return *result;
}

// The instructions that communicate: "forward tensor h.0.attn.c_proj.sum_shards".
inline std::vector<std::string> collectives(const ir::Program& program, const ir::Mesh& mesh) {
  std::vector<std::string> found;
  for (const ir::Instruction& at : program.instructions)
    if (at.stream != ir::Stream::compute)
      found.push_back(fmt::format("{} {} {}", name(at.role), to_string(ir::group_of(at, mesh)), at.label));
  return found;
}

// Values of all inputs, parameters and states.
using Values = std::map<std::string, DoubleTensor>;

// How an output leaves the ranks: a gradient split as its parameter is, a loss whole, and as partial as they were made.
inline ir::Sharding output_sharding(const ir::Program& logical, const ir::Output& output, const ir::Program& local,
                                    const ir::Mesh& mesh) {
  const ir::TensorId of = output.kind == ir::OutputKind::gradient ? output.parameter : output.tensor;
  ir::Sharding sharding = passes::restrict(*logical[of].sharding, mesh.wide());
  if (ir::is_share(output.kind)) sharding = ir::Sharding::whole(sharding.dimensions.size());
  const auto& left = local[local.output(output.name)].sharding;
  sharding.partial = left ? left->partial : ir::Axes{};
  return sharding;
}

// Standard normal numbers, and tokens below `vocabulary`.
inline Values random_values(const ir::Program& program, std::int64_t vocabulary, std::uint32_t seed) {
  std::minstd_rand random(seed);
  std::normal_distribution<double> normal;
  Values values;
  for (const ir::Tensor& tensor : program.tensors) {
    if (tensor.number >= 0) continue;
    DoubleTensor& value = values[tensor.name] = {tensor.type, {}};
    for (std::int64_t i = 0; i < tensor.type.shape.elements(); ++i)
      value.values.push_back(tensor.type.dtype == DType::i32 ? double(random() % std::uint32_t(vocabulary))
                                                             : 0.3 * normal(random));
  }
  return values;
}

}  // namespace lancet::test
