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

// The whole tensor of which the ranks hold shards, copies and summands.
DoubleTensor joined(const std::vector<DoubleTensor>& ranks, const Shape& shape, const mesh::Sharding& sharding,
                    const mesh::Mesh& mesh) {
  DoubleTensor whole{{DType::f32, shape}, std::vector<double>(std::size_t(shape.elements()))};
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const DoubleTensor& shard = ranks[std::size_t(rank)];
    const double copies = double(mesh.ranks()) * double(shard.values.size()) /
                          (double(whole.values.size()) * mesh.size(sharding.partial));
    for_each_index(shard.shape(), [&](const auto& index) {
      whole.values[offset_of(shape, index_in_whole(index, shape, sharding, mesh, rank))] +=
          shard.values[offset_of(shard.shape(), index)] / copies;
    });
  }
  return whole;
}

// The losses of gradient descent on the ranks of a mesh, from the same values on every mesh.
std::vector<double> train(const ir::Program& logical, const mesh::Mesh& mesh, std::int64_t vocabulary, int steps) {
  const ir::Program local = partitioned(logical, mesh);
  Values values = random_values(logical, vocabulary, 7);
  std::map<std::string, mesh::Sharding> shardings;
  for (const auto& [name, value] : values)
    shardings[name] = passes::restrict(*logical[logical.find(name)].sharding, mesh.wide());
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    for (auto& [name, value] : random_values(logical, vocabulary, std::uint32_t(100 + step)))
      if (value.type.dtype == DType::i32) values[name] = value;
    const auto outputs = run_as_threads(local, mesh, values, shardings);
    for (const ir::Output& output : logical.outputs) {
      const DoubleTensor whole = joined(outputs.at(output.name), logical.type(output.tensor).shape,
                                        output_sharding(logical, output, local, mesh), mesh);
      if (output.kind == ir::OutputKind::loss) losses.push_back(whole[0]);
      if (output.kind != ir::OutputKind::gradient) continue;
      DoubleTensor& parameter = values.at(logical[output.parameter].name);
      for (std::size_t i = 0; i < whole.values.size(); ++i)
        parameter.values[i] = float(parameter.values[i] - 0.1 * whole.values[i]);
    }
  }
  return losses;
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

TEST_CASE("rank threads: a vocabulary that is split over tensor") {
  for (const mesh::Mesh& mesh : {mesh_with(1, 1, 2), mesh_with(1, 1, 4), mesh_with(2, 1, 2)})
    for (const bool accumulate : {false, true}) {
      const ir::Program logical = DenseGpt2().make(2, mesh, accumulate, false, false, 4);
      INFO(to_string(mesh));
      CHECK(difference_of_threads(logical, mesh, random_values(logical, DenseGpt2::vocabulary, 7)) == "");
    }
}

TEST_CASE("rank threads: shards of vocabularies that no number of ranks divides") {
  struct Case {
    std::int64_t vocabulary, rows;
    int layers, ranks;
  };
  for (const Case& c : {Case{8191, 8192, 1, 2}, Case{8191, 8256, 0, 3}, Case{50257, 50304, 0, 4}}) {
    const mesh::Mesh mesh = mesh_with(1, 1, c.ranks);
    const ir::Program logical =
        DenseGpt2(c.vocabulary, c.rows).make(c.layers, mesh, false, false, false, std::int64_t(c.ranks));
    INFO(c.vocabulary << " on " << to_string(mesh));
    CHECK(difference_of_threads(logical, mesh, random_values(logical, c.vocabulary, 7)) == "");
  }
}

TEST_CASE("rank threads: 20 steps with a vocabulary of 8191 have the losses of one rank") {
  constexpr std::int64_t vocabulary = 8191, rows = 8192;
  const mesh::Mesh alone;
  const std::vector<double> expected = train(DenseGpt2(vocabulary, rows).make(1, alone), alone, vocabulary, 20);
  CHECK(expected.back() < expected.front() - 0.01);
  for (const int ranks : {2, 4}) {
    const mesh::Mesh mesh = mesh_with(1, 1, ranks);
    const ir::Program logical = DenseGpt2(vocabulary, rows).make(1, mesh, false, false, false, std::int64_t(ranks));
    const std::vector<double> found = train(logical, mesh, vocabulary, 20);
    for (std::size_t step = 0; step < expected.size(); ++step) {
      INFO(to_string(mesh) << ", step " << step << ": " << expected[step]);
      CHECK(std::abs(found[step] - expected[step]) < 1e-5);
    }
  }
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
