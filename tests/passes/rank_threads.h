// The ranks of a mesh as threads: each runs the rank's Program with the CPU's kernels, over an inproc communicator.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "doubles/inproc.h"
#include "lancet/comm/communicator.h"
#include "lancet/ops/catalogue.h"
#include "ops/references/harness.h"
#include "passes/rank_groups.h"
#include "passes/shards.h"

namespace lancet::test {

// One rank's tensors and groups.
class RankThread {
 public:
  RankThread(const ir::Program& program, const ir::Mesh& mesh, comm::Communicator& world)
      : program_(program), mesh_(mesh), world_(world) {}

  Status run(std::map<std::int32_t, GuardedTensor> values) {
    values_ = std::move(values);
    LANCET_ASSIGN(groups_, open_groups(program_, mesh_, world_));
    for (const ir::Instruction& at : program_.instructions) LANCET_TRY(execute(at));
    return {};
  }

  const GuardedTensor& of(ir::TensorId id) const { return values_.at(id.value); }

 private:
  Status execute(const ir::Instruction& at) {
    const ops::CpuKernel* kernel = ops::find_cpu_kernel(at.op);
    LANCET_CHECK(kernel, "{} has no CPU kernel", at.op);
    Bound bound{kernel->bind, kernel->workspace};
    const comm::Groups& groups = groups_.of_stream[std::size_t(at.stream)];
    if (const auto group = groups.find(ir::axes_text(at)); group != groups.end()) bound.group = group->second;
    std::vector<GuardedTensor> operands;
    for (const ir::TensorId id : at.operands) operands.push_back(of(id));
    const Outcome outcome = lancet::test::run(ops::op(at.op), std::move(operands), at.attributes, bound);
    if (!outcome.faults.empty()) return internal_error(at.label + ": " + outcome.faults[0]);
    for (std::size_t r = 0; r < at.results.size(); ++r)
      values_.insert_or_assign(at.results[r].value, outcome.results[r]);
    return {};
  }

  const ir::Program& program_;
  const ir::Mesh& mesh_;
  comm::Communicator& world_;
  RankGroups groups_;
  std::map<std::int32_t, GuardedTensor> values_;  // by tensor
};

// Runs all ranks on values of inputs, parameters and states, which `shardings` spreads by name. What each rank holds of
// each output, by name.
inline std::map<std::string, std::vector<DoubleTensor>> run_as_threads(
    const ir::Program& program, const ir::Mesh& mesh, const std::map<std::string, DoubleTensor>& values,
    const std::map<std::string, ir::Sharding>& shardings) {
  std::vector<std::map<std::int32_t, GuardedTensor>> start(std::size_t(mesh.ranks()));
  for (const auto& [name, whole] : values) {
    const auto shards = spread(whole, shardings.at(name), mesh);
    for (std::size_t rank = 0; rank < shards.size(); ++rank)
      start[rank].insert_or_assign(program.find(name).value, from_double(shards[rank]));
  }
  std::map<std::string, std::vector<DoubleTensor>> outputs;
  for (const ir::Output& output : program.outputs) outputs[output.name].resize(std::size_t(mesh.ranks()));
  const Status status = comm::run_inproc(mesh.ranks(), [&](comm::Communicator& world) -> Status {
    const auto rank = std::size_t(world.rank());
    RankThread thread(program, mesh, world);
    LANCET_TRY(thread.run(std::move(start[rank])));
    for (const ir::Output& output : program.outputs)
      outputs.at(output.name)[rank] = to_double(thread.of(output.tensor));
    return {};
  });
  require_sound(status);
  return outputs;
}

}  // namespace lancet::test
