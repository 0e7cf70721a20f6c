// A search for the shortest path over shardings (Dijkstra). The neighbours of a sharding are those that one collective
// leads to. Several axes go in one collective if they are the innermost ones of a dimension and in the mesh's order,
// which is that of the ranks in a group. Only steps towards the target are tried: a dimension keeps the outermost axes
// that the target has there, too, loses the others, and gains the target's next ones. So each sharding on the way
// divides the tensor if both ends do. Slices that cost nothing come first without a rule for it, since what follows
// moves less.
#include "lancet/passes/reshard_steps.h"

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>

#include "lancet/base/check.h"
#include "lancet/ir/groups.h"

namespace lancet::passes {
namespace {

using ir::Axes;
using ir::Axis;
using ir::Mesh;
using ir::Sharding;
using ir::Split;
using ir::TensorType;
using Kind = Reshard::Kind;

constexpr std::size_t nowhere = std::numeric_limits<std::size_t>::max();

std::size_t common_prefix(const Split& a, const Split& b) {
  if (a.blocks != b.blocks) return 0;
  const auto [end, other] = std::ranges::mismatch(a.axes, b.axes);
  return std::size_t(end - a.axes.begin());
}

class Search {
 public:
  Search(const TensorType& type, const Sharding& from, const Sharding& to, const Mesh& mesh, const ReshardCost& cost)
      : type_(type), to_(to), mesh_(mesh), cost_(cost) {
    reach(from, {}, nowhere, 0, 0);
  }

  ReshardSteps run() {
    std::size_t at = nearest();
    while (nodes_[at].sharding != to_) {
      nodes_[at].done = true;
      leave(at);
      at = nearest();
      LANCET_CHECK(at != nowhere, "no way to the sharding {}", to_string(type_.shape, to_));
    }
    return way_to(at);
  }

 private:
  struct Node {
    Sharding sharding;
    Reshard step;  // the last one on the way here
    std::size_t before;
    double cost;
    int steps;
    bool done = false;
  };

  std::size_t nearest() const {
    std::size_t best = nowhere;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].done) continue;
      if (best == nowhere ||
          std::pair(nodes_[i].cost, nodes_[i].steps) < std::pair(nodes_[best].cost, nodes_[best].steps))
        best = i;
    }
    return best;
  }

  void reach(const Sharding& sharding, const Reshard& step, std::size_t before, double cost, int steps) {
    const auto node = std::ranges::find(nodes_, sharding, &Node::sharding);
    if (node == nodes_.end())
      nodes_.push_back({sharding, step, before, cost, steps});
    else if (!node->done && std::pair(cost, steps) < std::pair(node->cost, node->steps))
      *node = {sharding, step, before, cost, steps};
  }

  ReshardSteps way_to(std::size_t node) {
    ReshardSteps way{{}, nodes_[node].cost};
    for (; nodes_[node].before != nowhere; node = nodes_[node].before)
      way.steps.push_back(std::move(nodes_[node].step));
    std::ranges::reverse(way.steps);
    return way;
  }

  TensorType shard_type(const Sharding& sharding) const {
    auto shape = shard_shape(type_.shape, sharding, mesh_);
    LANCET_CHECK(shape.ok(), "{}", shape.error().message);
    return {type_.dtype, *shape};
  }

  void step(std::size_t at, Reshard step, Sharding after) {
    step.ranks = mesh_.size(step.axes);
    step.before = shard_type(nodes_[at].sharding);
    step.after = shard_type(after);
    step.sharding = after;
    const double cost = nodes_[at].cost + cost_(step);
    reach(after, step, at, cost, nodes_[at].steps + 1);
  }

  // All steps from a node.
  void leave(std::size_t at) {
    const Sharding here = nodes_[at].sharding;
    for (std::size_t d = 0; d < here.dimensions.size(); ++d) {
      const std::vector<Axis>& axes = here.dimensions[d].axes;
      const std::size_t kept = common_prefix(here.dimensions[d], to_.dimensions[d]);
      for (std::size_t begin = axes.size(); begin-- > kept;) {
        if (begin + 1 < axes.size() && axes[begin] > axes[begin + 1]) break;  // no longer in the mesh's order
        leave_dimension(at, int(d), begin);
      }
    }
    leave_partial(at);
    leave_whole(at);
  }

  // The axes of dimension d from `begin` on leave it: to no dimension, or to the end of another one.
  void leave_dimension(std::size_t at, int d, std::size_t begin) {
    const Sharding here = nodes_[at].sharding;
    const Split& split = here.dimensions[std::size_t(d)];
    const std::span<const Axis> run = std::span(split.axes).subspan(begin);
    Sharding after = here;
    after.dimensions[std::size_t(d)].axes.resize(begin);
    if (begin == 0) after.dimensions[std::size_t(d)].blocks = 1;
    const Reshard out{.axes = Axes(run), .from = d, .from_blocks = split.blocks};
    Reshard gather = out;
    gather.kind = Kind::all_gather;
    step(at, gather, after);
    for (int to = 0; to < int(here.dimensions.size()); ++to) {
      if (to == d || !continues(here, to, run)) continue;
      Reshard swap = out;
      swap.kind = Kind::swap_shards;
      enter(at, swap, after, to, run);
    }
  }

  // True if the target has these axes in dimension d right after those that it has there now.
  bool continues(const Sharding& here, int d, std::span<const Axis> run) const {
    const Split &now = here.dimensions[std::size_t(d)], &target = to_.dimensions[std::size_t(d)];
    const std::size_t before = now.axes.size();
    if (target.axes.size() < before + run.size()) return false;
    if (before > 0 && common_prefix(now, target) < before) return false;
    return std::ranges::equal(run, std::span(target.axes).subspan(before, run.size()));
  }

  // The step `in` adds the run to dimension d.
  void enter(std::size_t at, Reshard in, Sharding after, int d, std::span<const Axis> run) {
    Split& split = after.dimensions[std::size_t(d)];
    split.axes.insert(split.axes.end(), run.begin(), run.end());
    split.blocks = to_.dimensions[std::size_t(d)].blocks;
    in.to = d;
    in.to_blocks = split.blocks;
    step(at, in, after);
  }

  // Sums over each set of axes that the target does not sum over.
  void leave_partial(std::size_t at) {
    const Sharding here = nodes_[at].sharding;
    for (const Axes summed : subsets(here.partial - to_.partial)) {
      Sharding after = here;
      after.partial = here.partial - summed;
      std::vector<Axis> run;
      for (const Axis axis : ir::all_axes)
        if (summed.has(axis)) run.push_back(axis);
      step(at, {.kind = Kind::sum_shards, .axes = summed}, after);
      for (int d = 0; d < int(here.dimensions.size()); ++d)
        if (continues(here, d, run)) enter(at, {.kind = Kind::reduce_scatter, .axes = summed}, after, d, run);
    }
  }

  // Axes that hold copies split a dimension, or make partial sums.
  void leave_whole(std::size_t at) {
    const Sharding here = nodes_[at].sharding;
    const Axes used = here.used();
    for (const Axes added : subsets(to_.partial - used)) {
      Sharding after = here;
      after.partial = here.partial | added;
      step(at, {.kind = Kind::one_summand, .axes = added}, after);
    }
    for (int d = 0; d < int(here.dimensions.size()); ++d) {
      const std::vector<Axis>& target = to_.dimensions[std::size_t(d)].axes;
      const std::size_t begin = here.dimensions[std::size_t(d)].axes.size();
      for (std::size_t end = begin + 1; end <= target.size() && !used.has(target[end - 1]); ++end) {
        if (end - begin > 1 && target[end - 2] > target[end - 1]) break;  // no longer in the mesh's order
        const std::span<const Axis> run = std::span(target).subspan(begin, end - begin);
        if (continues(here, d, run)) enter(at, {.kind = Kind::take_shard, .axes = Axes(run)}, here, d, run);
      }
    }
  }

  // All sets of some of these axes, but the empty one.
  static std::vector<Axes> subsets(Axes all) {
    std::vector<Axes> sets{Axes{}};
    for (const Axis axis : ir::all_axes) {
      if (!all.has(axis)) continue;
      for (std::size_t i = 0, count = sets.size(); i < count; ++i) {
        sets.push_back(sets[i]);
        sets.back().add(axis);
      }
    }
    sets.erase(sets.begin());
    return sets;
  }

  const TensorType& type_;
  const Sharding& to_;
  const Mesh& mesh_;
  const ReshardCost& cost_;
  std::vector<Node> nodes_;
};

}  // namespace

Sharding restrict(Sharding sharding, Axes axes) {
  sharding.partial = sharding.partial & axes;
  for (Split& split : sharding.dimensions) {
    std::erase_if(split.axes, [&](Axis axis) { return !axes.has(axis); });
    if (split.axes.empty()) split.blocks = 1;
  }
  return sharding;
}

Status check_sharding(const TensorType& type, const Sharding& sharding, const Mesh& mesh) {
  LANCET_TRY(shard_shape(type.shape, sharding, mesh));
  const Sharding spread = restrict(sharding, mesh.wide());
  if (spread.used().has(Axis::stage))
    return config_error("expected a sharding over data, expert or tensor, found one over stage");
  return {};
}

int ReshardSteps::collectives() const {
  return int(std::ranges::count_if(steps, [](const Reshard& step) { return !is_local(step.kind); }));
}

bool is_less(const ReshardSteps& a, const ReshardSteps& b) {
  return std::tuple(a.cost, a.collectives(), a.steps.size()) < std::tuple(b.cost, b.collectives(), b.steps.size());
}

std::string_view name(Reshard::Kind kind) {
  constexpr std::array<std::string_view, 6> names = {"take_shard",     "one_summand", "swap_shards",
                                                     "reduce_scatter", "sum_shards",  "all_gather"};
  return names[std::size_t(kind)];
}

ir::Attributes attributes(const Reshard& step, const ir::Mesh& mesh) {
  ir::Attributes result;
  if (is_local(step.kind))
    result.set(ir::axes_attribute, ir::to_string(step.axes));
  else
    ir::set_group(result, mesh, step.axes);
  if (step.kind == Kind::one_summand) return result;
  result.set("shards", std::int64_t(step.ranks));
  if (step.kind == Kind::sum_shards) return result;
  if (step.kind == Kind::swap_shards) {
    result.set("from", std::int64_t(step.from));
    result.set_blocks("from_blocks", step.from_blocks);
    result.set("to", std::int64_t(step.to));
    result.set_blocks("to_blocks", step.to_blocks);
    return result;
  }
  const bool gathers = step.kind == Kind::all_gather;
  result.set("axis", std::int64_t(gathers ? step.from : step.to));
  result.set_blocks("blocks", gathers ? step.from_blocks : step.to_blocks);
  return result;
}

double bytes_sent(const Reshard& step) {
  const double n = step.ranks, others = n - 1, before = double(ir::bytes(step.before));
  switch (step.kind) {
    case Kind::all_gather:
      return others * before;
    case Kind::swap_shards:
    case Kind::reduce_scatter:
      return others / n * before;
    case Kind::sum_shards:
      return 2 * others / n * before;
    default:
      return 0;  // local
  }
}

ReshardSteps reshard_steps(const ir::TensorType& type, const Sharding& from, const Sharding& to, const Mesh& mesh,
                           const ReshardCost& cost) {
  return Search(type, from, to, mesh, cost).run();
}

}  // namespace lancet::passes
