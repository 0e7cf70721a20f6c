// The step is cut into as many stages as it has blocks, by the pass that cuts it for a run. So what a stage of several
// blocks takes is the sum of theirs, but for what crosses between them.
#include "block_times.h"

#include <fmt/format.h>
#include <algorithm>

#include "lancet/ir/micro_batches.h"
#include "lancet/placement/solvers.h"
#include "lancet/planner/from_config.h"

namespace lancet::placement {
namespace {

// Of values that the forward pass makes in memory of their own, and another pass reads.
std::int64_t kept_bytes(const ir::Program& program) {
  std::vector<bool> made(program.tensors.size()), read(program.tensors.size());
  for (const ir::Instruction& at : program.instructions) {
    const bool forward = at.role == ir::Role::forward;
    for (const ir::TensorId id : at.results)
      if (forward && !program[id].storage.valid()) made[id.index()] = true;
    for (const ir::TensorId id : at.operands)
      if (!forward) read[program.root(id).index()] = true;
  }
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < made.size(); ++i)
    if (made[i] && read[i]) bytes += ir::bytes(program.tensors[i].type);
  return bytes;
}

BlockTimes times_of(const ir::Program& program, const Cluster& cluster) {
  BlockTimes times;
  times.on.resize(cluster.devices.size());
  const std::vector<bool> closes = ir::closes_step(program);
  for (std::size_t i = 0; i < closes.size(); ++i) {
    const ir::Instruction& at = program.instructions[i];
    if (!cost::is_local(program, at)) continue;
    for (std::size_t device = 0; device < times.on.size(); ++device) {
      const double ms = cost::op_ms(cluster.devices[device].hardware, program, at);
      BlockTimes::OfDevice& on = times.on[device];
      if (closes[i]) {
        on.update_ms += ms;
        continue;
      }
      on.micro_ms += ms;
      if (at.role != ir::Role::dw) on.chain_ms += ms;
    }
  }
  times.activations = kept_bytes(program);
  return times;
}

// The local ops of a step, without what flows between them. ms of an op: in all micro batches. chain_ms: of what a
// micro batch passes through, each op on its fastest device.
struct WholeStep {
  Problem problem;
  double chain_ms = 0;
};

WholeStep whole_step(const ir::Program& program, const Cluster& cluster, double micro_batches) {
  WholeStep step;
  for (const Cluster::Device& device : cluster.devices) step.problem.devices.push_back({device.name, device.memory_mb});
  const std::vector<bool> closes = ir::closes_step(program);
  for (std::size_t i = 0; i < closes.size(); ++i) {
    const ir::Instruction& at = program.instructions[i];
    if (!cost::is_local(program, at)) continue;
    std::vector<double> ms;
    for (const Cluster::Device& device : cluster.devices) ms.push_back(cost::op_ms(device.hardware, program, at));
    if (!closes[i] && at.role != ir::Role::dw) step.chain_ms += std::ranges::min(ms);
    if (!closes[i])
      for (double& each : ms) each *= micro_batches;
    step.problem.ops.emplace_back().ms = std::move(ms);
  }
  return step;
}

}  // namespace

Result<double> least_of_splits_ms(const config::Config& config, const Cluster& cluster) {
  config::Config whole = config;
  whole.train.memory_limit_mb = 0;
  whole.train.gradient_accumulation_steps = 1;  // the first micro batch adds its gradients to none
  LANCET_ASSIGN(const std::vector<ir::Program> programs, planner::programs_to_profile({whole, 1}, 1));
  const WholeStep step = whole_step(programs.front(), cluster, double(config.train.gradient_accumulation_steps));
  return std::max(step.chain_ms, lower_bound_ms(step.problem));
}

Result<std::vector<BlockTimes>> block_times(const config::Config& config, const Cluster& cluster) {
  config::Config cut = config;
  const int blocks = int(config.model.n_layer), stages = blocks + 1;
  cut.mesh.stage = stages;
  cut.mesh.stage_blocks.assign(std::size_t(blocks), 1);
  cut.mesh.stage_blocks.push_back(0);
  cut.train.memory_limit_mb = 0;  // one program a stage, without what is computed again
  const planner::StepModel model(cut, stages);
  LANCET_ASSIGN(const std::vector<ir::Program> programs, planner::programs_to_profile(model, 1));
  LANCET_ASSIGN(const std::vector<planner::LeastMemory> held, planner::least_memory(model));
  std::vector<BlockTimes> times;
  for (std::size_t block = 0; block < programs.size(); ++block) {
    times.push_back(times_of(programs[block], cluster));
    times.back().held = held[block].total();
  }
  return times;
}

std::string with_link(const Cluster::Device& device, double gbit_per_s, double latency_ms) {
  const auto [file, values] = cost::split_values(device.hardware_file);
  const double us = latency_ms * 1e3;
  return fmt::format(
      "{}:{}{}device.memory_gib={:.6f},device.reserved_gib=0,network.nics={},network.nic_gbit_per_s={:.6g},"
      "network.all_to_all_efficiency=1,network.all_reduce_efficiency=1,network.latency_us={:.6g},network.hop_us={:.6g}",
      file, values, values.empty() ? "" : ",", device.memory_mb * 1e6 / (1 << 30), device.hardware.node.devices,
      gbit_per_s, us, us);
}

}  // namespace lancet::placement
