#include "lancet/placement/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "lancet/cost/costs.h"
#include "lancet/ir/dependencies.h"
#include "lancet/passes/passes.h"
#include "lancet/planner/from_config.h"
#include "partial.h"

namespace lancet::placement {
namespace {

bool is_held(const ir::Tensor& tensor) {
  return tensor.kind == ir::TensorKind::parameter || tensor.kind == ir::TensorKind::state;
}

class GraphMaker {
 public:
  GraphMaker(const ir::Program& program, const Cluster& cluster, Task task)
      : program_(program), cluster_(cluster), task_(task) {}

  ModelGraph operator()() {
    for (std::size_t k = 0; k < cluster_.devices.size(); ++k)
      problem().devices.push_back({cluster_.devices[k].name, cluster_.devices[k].memory_mb});
    problem().ms_per_mb = cluster_.ms_per_mb;
    problem().latency_ms = cluster_.latency_ms;
    op_of_.assign(program_.instructions.size(), -1);
    for (std::size_t i = 0; i < op_of_.size(); ++i)
      if (!is_left_out(program_.instructions[i])) add_op(i);
    if (task_ == Task::training) set_groups();
    set_memory();
    add_flows();
    return std::move(graph_);
  }

 private:
  Problem& problem() { return graph_.problem; }
  const ir::Instruction& instruction(int op) const { return program_.instructions[instruction_of_[std::size_t(op)]]; }

  // The norm of the gradients and what is computed from it.
  static bool is_left_out(const ir::Instruction& instruction) {
    return instruction.role == ir::Role::update && instruction.writes.empty();
  }

  void add_op(std::size_t i) {
    const ir::Instruction& from = program_.instructions[i];
    Op op{.name = from.label + " " + from.op, .ms = {}};
    if (const int times = ++named_[op.name]; times > 1) op.name += fmt::format(" {}", times);
    for (const Cluster::Device& device : cluster_.devices)
      op.ms.push_back(cost::is_local(program_, from) ? cost::op_ms(device.hardware, program_, from) : 0);
    op_of_[i] = problem().op_count();
    instruction_of_.push_back(i);
    problem().ops.push_back(std::move(op));
    graph_.types.push_back(from.op);
  }

  void set_groups() {
    Together together(problem().ops.size());
    std::map<std::string, std::size_t> by_label;
    std::map<std::size_t, std::size_t> by_tensor;
    for (int op = 0; op < problem().op_count(); ++op) {
      const std::size_t at = std::size_t(op);
      together.join(at, by_label.emplace(instruction(op).label, at).first->second);
      for (const ir::TensorId id : instruction(op).operands)
        if (is_held(program_[id])) together.join(at, by_tensor.emplace(id.index(), at).first->second);
    }
    std::map<std::size_t, int> numbers;
    for (std::size_t at = 0; at < problem().ops.size(); ++at)
      problem().ops[at].group = numbers.emplace(together.root(at), int(numbers.size())).first->second;
  }

  // A parameter or state counts once for a group, or for an op in no group.
  void set_memory() {
    std::set<std::pair<int, std::size_t>> held;
    for (int op = 0; op < problem().op_count(); ++op) {
      Op& of = problem().ops[std::size_t(op)];
      const int owner = of.group >= 0 ? of.group : op;
      double bytes = 0;
      for (const ir::TensorId id : instruction(op).results)
        if (!program_[id].storage.valid()) bytes += double(ir::bytes(program_.type(id)));
      for (const ir::TensorId id : instruction(op).operands)
        if (is_held(program_[id]) && held.emplace(owner, id.index()).second)
          bytes += double(ir::bytes(program_.type(id)));
      of.mb = bytes * 1e-6;
    }
  }

  void add_flows() {
    std::vector<int> maker(program_.tensors.size(), -1);
    const auto needed = ir::dependencies(program_);
    for (int op = 0; op < problem().op_count(); ++op) {
      std::map<int, double> mb;  // by op
      std::set<std::size_t> read;
      for (const ir::TensorId id : instruction(op).operands)
        if (maker[id.index()] >= 0 && read.insert(id.index()).second)
          mb[maker[id.index()]] += double(ir::bytes(program_.type(id))) * 1e-6;
      // What shares a device also shares memory: an op that overwrites a tensor runs after its readers.
      for (const ir::InstructionId id : needed[instruction_of_[std::size_t(op)]]) {
        const int before = op_of_[id.index()];
        const int group = problem().ops[std::size_t(op)].group;
        if (before >= 0 && group >= 0 && problem().ops[std::size_t(before)].group == group) mb.emplace(before, 0);
      }
      for (const auto& [from, size] : mb) problem().flows.push_back({from, op, size});
      for (const ir::TensorId id : instruction(op).results) maker[id.index()] = op;
    }
  }

  const ir::Program& program_;
  const Cluster& cluster_;
  const Task task_;
  ModelGraph graph_;
  std::vector<int> op_of_;                   // by instruction; -1: left out
  std::vector<std::size_t> instruction_of_;  // by op
  std::map<std::string, int> named_;
};

}  // namespace

ModelGraph program_graph(const ir::Program& program, const Cluster& cluster, Task task) {
  return GraphMaker(program, cluster, task)();
}

Result<ModelGraph> model_graph(const config::Config& config, const Cluster& cluster, Task task) {
  if (task == Task::training) {
    LANCET_ASSIGN(const std::vector<ir::Program> steps, planner::programs_to_profile({config, 1}, 1));
    return program_graph(steps.front(), cluster, task);
  }
  LANCET_ASSIGN(ir::Program forward, planner::rank_forward(config, model::Mode::evaluate, 1));
  if (passes::has_unfolded_repeats(forward)) forward = passes::fold_repeats(forward, config::mesh_of(config, 1));
  return program_graph(forward, cluster, task);
}

}  // namespace lancet::placement
