// From a logical Program to steps on several ranks: shard, partition_spmd, a plan with its memory, executors of ranks
// that are threads, whose streams go over groups of the mesh. Against the logical Program in double.
#include <cstring>

#include "lancet/comm/communicator.h"
#include "lancet/ir/groups.h"
#include "lancet/planner/planner.h"
#include "lancet/runtime/executor.h"
#include "passes/dense_gpt2.h"
#include "passes/lock_step.h"
#include "passes/partitioned.h"

using namespace lancet;
using namespace lancet::test;

namespace {

// A rank's values of its named tensors, in the program's types.
using RankValues = std::map<std::string, GuardedTensor>;

// The groups that the plan's streams go over, opened on all ranks in one order.
Result<runtime::ExecutorOptions> open_groups(const ir::Plan& plan, const mesh::Mesh& mesh, comm::Communicator& world,
                                             std::vector<std::unique_ptr<comm::Communicator>>& owned) {
  runtime::ExecutorOptions options;
  const auto used = ir::used_axes(plan.program);
  for (std::size_t stream = 0; stream < used.size(); ++stream)
    for (const mesh::Axes axes : used[stream]) {
      LANCET_ASSIGN(owned.emplace_back(), world.split(mesh.group(world.rank(), axes)));
      options.groups[stream][mesh::to_string(axes)] = comm::group_of(*owned.back());
    }
  return options;
}

// Runs two steps, with what the first leaves in states, and gives the outputs of the second.
Status run_rank(const ir::Plan& plan, const mesh::Mesh& mesh, comm::Communicator& world, const RankValues& values,
                std::map<std::string, DoubleTensor>& outputs) {
  std::vector<std::unique_ptr<comm::Communicator>> owned;
  LANCET_ASSIGN(const runtime::ExecutorOptions options, open_groups(plan, mesh, world, owned));
  runtime::TensorStore store;
  store.add(plan.program);
  LANCET_ASSIGN(const auto executor, runtime::Executor::create(plan, store, options));
  for (int step = 0; step < 2; ++step) {
    for (const auto& [name, value] : values) {
      const bool is_input = plan.program[plan.program.find(name)].kind == ir::TensorKind::input;
      if (step > 0 && !is_input) continue;
      std::memcpy(is_input ? executor->input(name).data : store[name].memory.start, value.data(), value.size());
    }
    LANCET_TRY(executor->run());
  }
  for (const ir::Output& output : plan.program.outputs) {
    const ops::TensorView view = executor->output(output.name);
    GuardedTensor copy(view.type);
    std::memcpy(copy.data(), view.data, copy.size());
    outputs[output.name] = to_double(copy);
  }
  return {};
}

}  // namespace

TEST_CASE("partitioned programs: planned and executed by ranks that are threads") {
  const bool accumulate = GENERATE(false, true);
  for (const mesh::Mesh& mesh : {mesh_with(2, 1, 1), mesh_with(2, 1, 2), mesh_with(1, 1, 4)}) {
    INFO(to_string(mesh) << (accumulate ? ", gradients add up" : ""));
    const ir::Program logical = DenseGpt2().make(2, mesh, accumulate), local = partitioned(logical, mesh);
    const ir::Plan plan = planner::make_forward_plan(local, mesh);
    require_sound(ir::verify(plan));
    const Values values = random_values(logical, DenseGpt2::vocabulary, 21);
    std::vector<RankValues> of_ranks(std::size_t(mesh.ranks()));
    LockStep whole(logical, mesh_with(1, 1, 1));
    for (const auto& [name, value] : values) {
      whole.set(name, value, mesh::Sharding::whole(std::size_t(value.shape().rank())));
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
