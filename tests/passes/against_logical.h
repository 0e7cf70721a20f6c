// The rank's Program against the logical one, both by the ops' references in double.
#pragma once
#include <fmt/format.h>

#include <string>

#include "passes/lock_step.h"
#include "passes/partitioned.h"

namespace lancet::test {

// All outputs of the rank's Program against those of the logical one; the first that differs, or nothing.
inline std::string difference(const ir::Program& logical, const ir::Program& local, const ir::Mesh& mesh,
                              const Values& values, double tolerance = 1e-9) {
  const ir::Mesh alone;
  LockStep whole(logical, alone), ranks(local, mesh);
  for (const auto& [name, value] : values) {
    whole.set(name, value, ir::Sharding::whole(std::size_t(value.shape().rank())));
    ranks.set(name, value, *logical[logical.find(name)].sharding);
  }
  whole.run();
  ranks.run();
  for (const ir::Output& output : logical.outputs) {
    const DoubleTensor& expected = whole.of(output.tensor)[0];
    const ir::Sharding sharding = output_sharding(logical, output, local, mesh);
    const ir::TensorId found = local.output(output.name);
    if (const int wrong = wrong_elements(ranks.of(found), expected, sharding, mesh, tolerance); wrong != 0)
      return fmt::format("output {}: {} elements of {} differ", output.name, wrong,
                         to_string(expected.shape(), sharding));
  }
  return "";
}

}  // namespace lancet::test
