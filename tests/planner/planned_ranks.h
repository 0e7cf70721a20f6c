// A plan on ranks that are threads, whose streams go over groups of a mesh.
#pragma once
#include <chrono>
#include <cstring>
#include <map>
#include <string>
#include <thread>

#include "lancet/comm/communicator.h"
#include "lancet/runtime/executor.h"
#include "ops/references/harness.h"
#include "passes/rank_groups.h"

namespace lancet::test {

// A rank's values of its named tensors, in the program's types.
using RankValues = std::map<std::string, GuardedTensor>;

// Runs two steps, with what the first leaves in states, and gives the outputs of the second. late: how long the rank
// waits before each step.
inline Status run_rank(const ir::Plan& plan, const ir::Mesh& mesh, comm::Communicator& world, const RankValues& values,
                       std::map<std::string, DoubleTensor>& outputs, std::chrono::milliseconds late = {}) {
  LANCET_ASSIGN(const RankGroups groups, open_groups(plan.program, mesh, world));
  runtime::ExecutorOptions options;
  options.groups = groups.of_stream;
  runtime::TensorStore store;
  store.add(plan.program);
  LANCET_ASSIGN(const auto executor, runtime::Executor::create(plan, store, options));
  for (int step = 0; step < 2; ++step) {
    for (const auto& [name, value] : values) {
      const bool is_input = plan.program[plan.program.find(name)].kind == ir::TensorKind::input;
      if (step > 0 && !is_input) continue;
      std::memcpy(is_input ? executor->input(name).data : store[name].memory.start, value.data(), value.size());
    }
    std::this_thread::sleep_for(late);
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
