// A plan on ranks that are threads, whose streams go over groups of a mesh.
#pragma once
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lancet/comm/communicator.h"
#include "lancet/ir/groups.h"
#include "lancet/runtime/executor.h"
#include "ops/references/harness.h"

namespace lancet::test {

// A rank's values of its named tensors, in the program's types.
using RankValues = std::map<std::string, GuardedTensor>;

// The groups that the plan's streams go over, opened on all ranks in one order.
inline Result<runtime::ExecutorOptions> open_groups(const ir::Plan& plan, const mesh::Mesh& mesh,
                                                    comm::Communicator& world,
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
inline Status run_rank(const ir::Plan& plan, const mesh::Mesh& mesh, comm::Communicator& world,
                       const RankValues& values, std::map<std::string, DoubleTensor>& outputs) {
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

}  // namespace lancet::test
