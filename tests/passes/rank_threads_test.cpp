// The Programs of partition_spmd on ranks that are threads, with the CPU's kernels and real messages, against the
// logical Program in double.
#include "passes/rank_threads.h"

#include "passes/dense_gpt2.h"
#include "passes/lock_step.h"
#include "passes/partitioned.h"
#include "passes/random_program.h"

using namespace lancet;
using namespace lancet::test;

namespace {

// The first output that differs, or nothing.
std::string difference_of_threads(const ir::Program& logical, const mesh::Mesh& mesh, const Values& values) {
  const ir::Program local = partitioned(logical, mesh);
  const mesh::Mesh alone;
  LockStep whole(logical, alone);
  std::map<std::string, mesh::Sharding> shardings;
  for (const auto& [name, value] : values) {
    whole.set(name, value, mesh::Sharding::whole(std::size_t(value.shape().rank())));
    shardings[name] = passes::restrict(*logical[logical.find(name)].sharding, mesh.wide());
  }
  whole.run();
  const auto outputs = run_as_threads(local, mesh, values, shardings);
  for (const ir::Output& output : logical.outputs) {
    const double tolerance = output.kind == ir::OutputKind::loss ? 1e-5 : 1e-4;
    const int wrong = wrong_elements(outputs.at(output.name), whole.of(output.tensor)[0],
                                     output_sharding(logical, output, local, mesh), mesh, tolerance);
    if (wrong != 0) return fmt::format("output {}: {} elements differ", output.name, wrong);
  }
  return "";
}

}  // namespace

TEST_CASE("rank threads: a dense GPT-2 on meshes is the GPT-2 on one rank") {
  for (const mesh::Mesh& mesh : {mesh_with(2, 1, 1), mesh_with(1, 1, 2), mesh_with(2, 1, 2), mesh_with(1, 1, 4)})
    for (const bool sequence : {false, true}) {
      const ir::Program logical = DenseGpt2().make(2, mesh, false, sequence);
      INFO(to_string(mesh) << (sequence ? ", sequence parallelism" : ""));
      CHECK(difference_of_threads(logical, mesh, random_values(logical, DenseGpt2::vocabulary, 7)) == "");
    }
  const mesh::Mesh mesh = mesh_with(4, 1, 2);
  const ir::Program split_weights = DenseGpt2().make(2, mesh, false, false, true);
  CHECK(difference_of_threads(split_weights, mesh, random_values(split_weights, DenseGpt2::vocabulary, 7)) == "");
}

TEST_CASE("rank threads: random steps with random shardings of all tensors") {
  const mesh::Mesh meshes[] = {mesh_with(2, 1, 1), mesh_with(1, 4, 1), mesh_with(1, 2, 2), mesh_with(2, 2, 2)};
  for (std::uint32_t seed = 300; seed < 330; ++seed) {
    RandomProgram random(seed);
    ir::Program logical = random.make();
    const mesh::Mesh& mesh = meshes[seed % std::size(meshes)];
    random.shard(logical, mesh);
    INFO("seed " << seed << " on " << to_string(mesh) << "\n" << ir::print(logical));
    REQUIRE(difference_of_threads(logical, mesh, random_values(logical, 16, seed)) == "");
  }
}
