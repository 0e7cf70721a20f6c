// From a logical Program to steps on several ranks: shard, partition_spmd, a plan with its memory, executors of ranks
// that are threads, whose streams go over groups of the mesh. Against the logical Program in double.
#include "passes/partitioned.h"
#include "doubles/inproc.h"
#include "lancet/planner/planner.h"
#include "passes/dense_gpt2.h"
#include "passes/lock_step.h"
#include "planner/planned_ranks.h"

using namespace lancet;
using namespace lancet::test;

TEST_CASE("partitioned programs: planned and executed by ranks that are threads") {
  struct Case {
    ir::Mesh mesh;
    bool accumulate = false;
    std::int64_t vocabulary_blocks = 0;  // 0: the vocabulary is whole
  };
  for (const Case& c :
       {Case{mesh_with(2, 1, 1)}, Case{mesh_with(2, 1, 2)}, Case{mesh_with(1, 1, 4)}, Case{mesh_with(2, 1, 2), true},
        Case{mesh_with(1, 1, 4), true}, Case{mesh_with(2, 1, 2), false, 2}}) {
    const ir::Mesh& mesh = c.mesh;
    INFO(to_string(mesh) << ", " << c.vocabulary_blocks << " blocks of columns"
                         << (c.accumulate ? ", gradients add up" : ""));
    const ir::Program logical = DenseGpt2().make(2, mesh, c.accumulate, false, false, c.vocabulary_blocks),
                      local = partitioned(logical, mesh);
    const ir::Plan plan = planner::make_forward_plans(local, ir::Mesh{}).value()[0];
    require_sound(ir::verify(plan));
    const Values values = random_values(logical, DenseGpt2::vocabulary, 21);
    std::vector<RankValues> of_ranks(std::size_t(mesh.ranks()));
    LockStep whole(logical, mesh_with(1, 1, 1));
    for (const auto& [name, value] : values) {
      whole.set(name, value, ir::Sharding::whole(std::size_t(value.shape().rank())));
      const auto shards = spread(value, *logical[logical.find(name)].sharding, mesh);
      for (std::size_t rank = 0; rank < shards.size(); ++rank)
        of_ranks[rank].insert_or_assign(name, from_double(shards[rank]));
    }
    for (int step = 0; step < 2; ++step) whole.run();
    std::vector<std::map<std::string, DoubleTensor>> outputs(of_ranks.size());
    require_sound(comm::run_inproc(mesh.ranks(), [&](comm::Communicator& world) -> Status {
      const auto rank = std::size_t(world.rank());
      return run_rank(plan, mesh, world, of_ranks[rank], outputs[rank]);
    }));
    for (const ir::Output& output : logical.outputs) {
      INFO(output.name);
      std::vector<DoubleTensor> ranks;
      for (const auto& of_rank : outputs) ranks.push_back(of_rank.at(output.name));
      CHECK(wrong_elements(ranks, whole.of(output.tensor)[0], output_sharding(logical, output, local, mesh), mesh,
                           output.kind == ir::OutputKind::loss ? 1e-5 : 1e-4) == 0);
    }
  }
}
