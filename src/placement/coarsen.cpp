// How it works. From each op, in the order of the graph, each rule walks the only edge that leaves the op that it has
// reached, and binds the op at its other end if that has the rule's next type and is free. A rule that reaches its last
// type fuses what it bound; one that does not releases it for the next rule, and for walks that begin elsewhere.
//
// In a graph without groups an op with one reader is all that leads from it to the rest, so fusing makes no cycle. In
// one with groups an op of a chain may have more readers in the unit of the next one; a chain that would then close a
// cycle is released as well.
#include "lancet/placement/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <queue>

#include "lancet/base/check.h"
#include "lancet/placement/timetable.h"
#include "partial.h"

namespace lancet::placement {
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
