#include "lancet/placement/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <queue>
#include <set>

#include "lancet/cost/costs.h"
#include "lancet/ir/dependencies.h"
#include "lancet/passes/passes.h"
#include "lancet/placement/timetable.h"
#include "lancet/planner/from_config.h"

namespace lancet::placement {
namespace {

// Sets of indices that grow together. A set's root is its least index.
class Together {
 public:
  explicit Together(std::size_t count) : parent_(count) { std::iota(parent_.begin(), parent_.end(), std::size_t(0)); }
  std::size_t root(std::size_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  void join(std::size_t a, std::size_t b) { parent_[std::max(root(a), root(b))] = std::min(root(a), root(b)); }

 private:
  std::vector<std::size_t> parent_;
};

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

// How coarsening works. From each op, in the order of the graph, each rule walks the only edge that leaves the op that
// it has reached, and binds the op at its other end if that has the rule's next type and is free. A rule that reaches
// its last type fuses what it bound; one that does not releases it for the next rule, and for walks that begin
// elsewhere.
//
// In a graph without groups an op with one reader is all that leads from it to the rest, so fusing makes no cycle. In
// one with groups an op of a chain may have more readers in the unit of the next one; a chain that would then close a
// cycle is released as well.
namespace {

const FusionRule rule_table[] = {
    {"FFN, residual and norm", {"linear", "gelu", "linear", "add_layer_norm"}},
    {"FFN", {"linear", "gelu", "linear"}},
    {"experts", {"expert_linear", "gelu", "expert_linear"}},
    {"norm, product and attention", {"layer_norm", "linear", "attention"}},
    {"product, residual and norm", {"linear", "add_layer_norm"}},
    {"combine, residual and norm", {"combine", "add_layer_norm"}},
    {"product and attention", {"linear", "attention"}},
    {"norm and product", {"layer_norm", "linear"}},
    {"bias and GELU", {"linear", "gelu"}},
    {"GELU and product, backward", {"linear_dx", "gelu_dx"}},
    {"router and choice", {"router", "top_k"}},
};

class Coarsener {
 public:
  Coarsener(const ModelGraph& graph, std::span<const FusionRule> rules)
      : fine_(graph.problem),
        types_(graph.types),
        rules_(rules),
        flows_(flows_of_ops(fine_)),
        units_(units_of(fine_)) {}

  Coarse operator()() {
    chain_.resize(fine_.ops.size());
    std::iota(chain_.begin(), chain_.end(), 0);
    fused_.assign(fine_.ops.size(), false);
    for (int op = 0; op < fine_.op_count(); ++op)
      for (const FusionRule& rule : rules_)
        if (fuse(op, rule)) break;
    return made();
  }

 private:
  bool is_fused(int op) const { return fused_[std::size_t(op)]; }

  // The op that alone follows `op`, or -1: the first reader besides those of its own unit, if all are in one unit; if
  // there is none, the first of its own unit.
  int only_reader(int op) const {
    int first = -1, own = -1;
    for (const int flow : flows_.out[std::size_t(op)]) {
      const int to = fine_.flows[std::size_t(flow)].to;
      const int unit = units_.of[std::size_t(to)];
      if (unit == units_.of[std::size_t(op)]) {
        own = own < 0 ? to : std::min(own, to);
        continue;
      }
      if (first >= 0 && unit != units_.of[std::size_t(first)]) return -1;
      first = first < 0 ? to : std::min(first, to);
    }
    return first >= 0 ? first : own;
  }

  bool fuse(int op, const FusionRule& rule) {
    std::vector<int> bound;
    for (const std::string_view type : rule.types) {
      if (op < 0 || types_[std::size_t(op)] != type || is_fused(op)) return false;
      bound.push_back(op);
      op = only_reader(op);
    }
    for (const int member : bound) chain_[std::size_t(member)] = bound.front();
    if (!order().empty()) {
      for (const int member : bound) fused_[std::size_t(member)] = true;
      return true;
    }
    for (const int member : bound) chain_[std::size_t(member)] = member;
    return false;
  }

  // The chains, named by their first ops, in an order of precedence, of those that are ready the first; empty if there
  // is none.
  std::vector<int> order() const {
    std::vector<std::vector<int>> readers(fine_.ops.size());
    std::vector<int> inputs(fine_.ops.size(), 0);
    for (const Flow& flow : fine_.flows) {
      const int from = chain_[std::size_t(flow.from)], to = chain_[std::size_t(flow.to)];
      if (from == to) continue;
      readers[std::size_t(from)].push_back(to);
      ++inputs[std::size_t(to)];
    }
    std::priority_queue<int, std::vector<int>, std::greater<>> ready;
    std::size_t chains = 0;
    for (int op = 0; op < fine_.op_count(); ++op) {
      if (chain_[std::size_t(op)] != op) continue;
      ++chains;
      if (inputs[std::size_t(op)] == 0) ready.push(op);
    }
    std::vector<int> found;
    while (!ready.empty()) {
      const int next = ready.top();
      ready.pop();
      found.push_back(next);
      for (const int reader : readers[std::size_t(next)])
        if (--inputs[std::size_t(reader)] == 0) ready.push(reader);
    }
    return found.size() == chains ? found : std::vector<int>();
  }

  Coarse made() const {
    Coarse coarse;
    coarse.problem.devices = fine_.devices;
    coarse.problem.ms_per_mb = fine_.ms_per_mb;
    coarse.problem.latency_ms = fine_.latency_ms;
    std::vector<int> number(fine_.ops.size(), -1);  // by the first op of a chain
    for (const int first : order()) {
      number[std::size_t(first)] = coarse.problem.op_count();
      coarse.problem.ops.push_back({.name = "", .ms = std::vector<double>(fine_.devices.size(), 0)});
      coarse.members.emplace_back();
    }
    for (int op = 0; op < fine_.op_count(); ++op) add_member(coarse, op, number[std::size_t(chain_[std::size_t(op)])]);
    join_groups(coarse);
    std::map<std::pair<int, int>, double> mb;
    for (const Flow& flow : fine_.flows) {
      const int from = number[std::size_t(chain_[std::size_t(flow.from)])];
      const int to = number[std::size_t(chain_[std::size_t(flow.to)])];
      if (from != to) mb[{to, from}] += flow.mb;
    }
    for (const auto& [ends, size] : mb) coarse.problem.flows.push_back({ends.second, ends.first, size});
    return coarse;
  }

  void add_member(Coarse& coarse, int op, int to) const {
    const Op& of = fine_.ops[std::size_t(op)];
    Op& whole = coarse.problem.ops[std::size_t(to)];
    whole.name += (whole.name.empty() ? "" : " + ") + of.name;
    for (std::size_t k = 0; k < whole.ms.size(); ++k) whole.ms[k] += of.ms[k];
    whole.mb += of.mb;
    coarse.members[std::size_t(to)].push_back(op);
  }

  // The least number of the groups that chains connect.
  void join_groups(Coarse& coarse) const {
    int groups = 0;
    for (const Op& op : fine_.ops) groups = std::max(groups, op.group + 1);
    Together joined{std::size_t(groups)};
    for (std::size_t i = 0; i < coarse.members.size(); ++i)
      for (const int op : coarse.members[i]) {
        int& group = coarse.problem.ops[i].group;
        const int other = fine_.ops[std::size_t(op)].group;
        if (group >= 0 && other >= 0) joined.join(std::size_t(group), std::size_t(other));
        if (group < 0) group = other;
      }
    for (Op& op : coarse.problem.ops)
      if (op.group >= 0) op.group = int(joined.root(std::size_t(op.group)));
  }

  const Problem& fine_;
  const std::vector<std::string>& types_;
  const std::span<const FusionRule> rules_;
  const FlowsOfOps flows_;
  const Units units_;
  std::vector<int> chain_;   // by op: the first op of its chain
  std::vector<bool> fused_;  // by op: it is in a chain of more than one
};

}  // namespace

std::span<const FusionRule> fusion_rules() { return rule_table; }

Coarse coarsen(const ModelGraph& graph, std::span<const FusionRule> rules) { return Coarsener(graph, rules)(); }

Placement refine(const Problem& fine, const Coarse& coarse, const Placement& placement) {
  std::vector<int> device(fine.ops.size(), -1), order;
  const int chains = coarse.problem.op_count();
  for (const int task : order_of(coarse.problem, placement)) {
    if (task >= chains) continue;  // flows of chains are those of several ops
    for (const int op : coarse.members[std::size_t(task)]) {
      device[std::size_t(op)] = placement.device[std::size_t(task)];
      order.push_back(op);
    }
  }
  return timetable(fine, device, order);
}

}  // namespace lancet::placement
