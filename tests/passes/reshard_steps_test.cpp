// Resharding: every pair of shardings of small tensors, executed by definition on the ranks of a mesh; and the steps
// that well-known cases take.
#include <fmt/format.h>

#include <algorithm>

#include "passes/shards.h"
#include "steps/support.h"

using namespace lancet;
using namespace lancet::test;
using ir::Axis;
using ir::Mesh;
using ir::Sharding;
using passes::Reshard;

namespace {

// All shardings of a shape: each axis splits one of the dimensions, after others or before them, is summed over, or
// holds copies; dimensions in blocks of 1 to `blocks` units, of which 3 are two blocks.
class AllShardings {
 public:
  AllShardings(const Shape& shape, const Mesh& mesh, std::int64_t blocks)
      : shape_(shape), mesh_(mesh), blocks_(blocks) {
    place(0, Sharding::whole(std::size_t(shape.rank())));
  }
  std::vector<Sharding> found;

 private:
  void place(int axis, const Sharding& sharding) {
    if (axis == ir::axis_count) return in_blocks(0, sharding);
    const Axis at = ir::all_axes[std::size_t(axis)];
    place(axis + 1, sharding);
    if (mesh_[at] == 1) return;
    Sharding next = sharding;
    next.partial.add(at);
    place(axis + 1, next);
    for (std::size_t d = 0; d < sharding.dimensions.size(); ++d)
      for (std::size_t i = 0; i <= sharding.dimensions[d].axes.size(); ++i) {
        next = sharding;
        next.dimensions[d].axes.insert(next.dimensions[d].axes.begin() + std::ptrdiff_t(i), at);
        place(axis + 1, next);
      }
  }
  void in_blocks(std::size_t d, Sharding sharding) {
    if (d == sharding.dimensions.size()) {
      if (shard_shape(shape_, sharding, mesh_).ok()) found.push_back(sharding);
      return;
    }
    const bool split = !sharding.dimensions[d].axes.empty();
    for (std::int64_t blocks = 1; blocks <= (split ? blocks_ : 1); ++blocks) {
      sharding.dimensions[d].blocks = blocks == 3 ? ir::Blocks::of({1, 2}) : ir::Blocks(blocks);
      in_blocks(d + 1, sharding);
    }
  }

  Shape shape_;
  Mesh mesh_;
  std::int64_t blocks_;
};

DoubleTensor numbered(const Shape& shape) {
  DoubleTensor whole{{DType::f32, shape}, {}};
  for (std::int64_t i = 0; i < shape.elements(); ++i) whole.values.push_back(double(i * i + 1));
  return whole;
}

Mesh mesh_of(int data, int expert, int tensor) {
  Mesh mesh;
  mesh[Axis::data] = data;
  mesh[Axis::expert] = expert;
  mesh[Axis::tensor] = tensor;
  return mesh;
}

// Executes the steps of every pair of shardings; the number of pairs.
int check_all_pairs(const Shape& shape, const Mesh& mesh, std::int64_t blocks) {
  const DoubleTensor whole = numbered(shape);
  const auto shardings = AllShardings(shape, mesh, blocks).found;
  for (const Sharding& from : shardings) {
    const auto start = spread(whole, from, mesh);
    for (const Sharding& to : shardings) {
      const auto way = passes::reshard_steps(whole.type, from, to, mesh, passes::bytes_sent);
      auto ranks = start;
      double cost = 0;
      for (const Reshard& step : way.steps) {
        ranks = apply(step, ranks, mesh);
        cost += passes::bytes_sent(step);
      }
      const int wrong = wrong_elements(ranks, whole, to, mesh);
      if (wrong != 0 || cost != way.cost || way.steps.empty() != (from == to))
        FAIL(fmt::format("{} from {} to {}: {} wrong elements, cost {} of {}", to_string(mesh), to_string(shape, from),
                         to_string(shape, to), wrong, cost, way.cost));
    }
  }
  return int(shardings.size() * shardings.size());
}

// True if a's axes are the outermost ones of b, in the same blocks.
bool is_outer(const ir::Split& a, const ir::Split& b) {
  return a.axes.size() <= b.axes.size() && std::equal(a.axes.begin(), a.axes.end(), b.axes.begin()) &&
         (a.axes.empty() || a.blocks == b.blocks);
}

// The axes of b inside those of a, if they are in the mesh's order, as the ranks of a group are.
std::optional<std::vector<Axis>> gained(const ir::Split& a, const ir::Split& b) {
  if (!is_outer(a, b)) return std::nullopt;
  std::vector<Axis> run(b.axes.begin() + std::ptrdiff_t(a.axes.size()), b.axes.end());
  return std::ranges::is_sorted(run) ? std::optional(run) : std::nullopt;
}

// The step that alone leads from one sharding to another, by the definitions of the ops, if there is one.
std::optional<Reshard> one_step(const Sharding& from, const Sharding& to, const Mesh& mesh) {
  std::vector<std::vector<Axis>> in, out;
  for (std::size_t d = 0; d < from.dimensions.size(); ++d) {
    if (from.dimensions[d] == to.dimensions[d]) continue;
    const auto more = gained(from.dimensions[d], to.dimensions[d]), less = gained(to.dimensions[d], from.dimensions[d]);
    if (!more && !less) return std::nullopt;
    (more ? in : out).push_back(more ? *more : *less);
  }
  std::vector<Axis> summed, made;
  for (const Axis axis : ir::all_axes) {
    if (from.partial.has(axis) && !to.partial.has(axis)) summed.push_back(axis);
    if (!from.partial.has(axis) && to.partial.has(axis)) made.push_back(axis);
  }
  const bool gathers = out.size() == 1, splits = in.size() == 1;
  if (in.size() > 1 || out.size() > 1 || int(gathers) + int(!summed.empty()) + int(!made.empty()) > 1)
    return std::nullopt;
  Reshard step;
  auto is = [&](Reshard::Kind kind, const std::vector<Axis>& axes) {
    step.kind = kind;
    step.axes = ir::Axes(axes);
    step.ranks = mesh.size(step.axes);
    return step;
  };
  if (gathers && splits) return in == out ? std::optional(is(Reshard::Kind::swap_shards, in[0])) : std::nullopt;
  if (gathers) return is(Reshard::Kind::all_gather, out[0]);
  if (!summed.empty() && splits)
    return in[0] == summed ? std::optional(is(Reshard::Kind::reduce_scatter, summed)) : std::nullopt;
  if (!summed.empty()) return is(Reshard::Kind::sum_shards, summed);
  if (!made.empty()) return splits ? std::nullopt : std::optional(is(Reshard::Kind::one_summand, made));
  return is(Reshard::Kind::take_shard, in[0]);
}

// True if each dimension has the outermost of the axes that it has in one of the two shardings, or none, and only what
// is partial in one of them is partial.
bool is_between(const Sharding& sharding, const Sharding& from, const Sharding& to) {
  for (std::size_t d = 0; d < sharding.dimensions.size(); ++d)
    if (!is_outer(sharding.dimensions[d], from.dimensions[d]) && !is_outer(sharding.dimensions[d], to.dimensions[d]))
      return false;
  return (sharding.partial - (from.partial | to.partial)).empty();
}

// The number of pairs of shardings for which the way is dearer than the shortest path over all shardings between them
// (Bellman-Ford).
int dearer_pairs(const Shape& shape, const Mesh& mesh, std::int64_t blocks) {
  const auto all = AllShardings(shape, mesh, blocks).found;
  const std::size_t n = all.size();
  constexpr double none = 1e300;
  std::vector<double> edge(n * n, none);
  for (std::size_t a = 0; a < n; ++a)
    for (std::size_t b = 0; b < n; ++b)
      if (auto step = a == b ? std::nullopt : one_step(all[a], all[b], mesh)) {
        step->before = {DType::f32, shard_shape(shape, all[a], mesh).value()};
        edge[a * n + b] = passes::bytes_sent(*step);
      }
  auto shortest = [&](std::size_t from, std::size_t to) {
    std::vector<std::size_t> between;
    for (std::size_t i = 0; i < n; ++i)
      if (i == from || i == to || is_between(all[i], all[from], all[to])) between.push_back(i);
    std::vector<double> least(n, none);
    least[from] = 0;
    for (bool changed = true; changed;) {
      changed = false;
      for (const std::size_t a : between)
        for (const std::size_t b : between)
          if (least[a] + edge[a * n + b] < least[b]) least[b] = least[a] + edge[a * n + b], changed = true;
    }
    return least[to];
  };
  int dearer = 0;
  for (std::size_t a = 0; a < n; ++a)
    for (std::size_t b = 0; b < n; ++b) {
      const double least = shortest(a, b);
      const auto way = passes::reshard_steps({DType::f32, shape}, all[a], all[b], mesh, passes::bytes_sent);
      if (std::abs(way.cost - least) < 1e-6) continue;
      if (++dearer == 1)
        WARN(fmt::format("{} from {} to {}: cost {}, least {}", to_string(mesh), to_string(shape, all[a]),
                         to_string(shape, all[b]), way.cost, least));
    }
  return dearer;
}

// The steps between two shardings on data 2, expert 2, tensor 2: "reduce_scatter tensor 0; all_gather data 1".
std::string steps(const Shape& shape, const Sharding& from, const Sharding& to) {
  const Mesh mesh = mesh_of(2, 2, 2);
  std::string text;
  for (const Reshard& step : passes::reshard_steps({DType::f32, shape}, from, to, mesh, passes::bytes_sent).steps) {
    if (!text.empty()) text += "; ";
    text += fmt::format("{} {}", name(step.kind), to_string(step.axes));
    if (step.from >= 0) text += fmt::format(" {}", step.from);
    if (step.to >= 0) text += fmt::format(" {}", step.to);
  }
  return text;
}

}  // namespace

TEST_CASE("reshard steps: every pair of shardings, by values") {
  CHECK(check_all_pairs({8, 16}, mesh_of(1, 1, 2), 4) == 8 * 8);
  CHECK(check_all_pairs({12, 6}, mesh_of(2, 1, 3), 2) > 300);
  CHECK(check_all_pairs({12, 24}, mesh_of(2, 1, 2), 3) > 300);
  CHECK(check_all_pairs({2, 4, 2}, mesh_of(1, 2, 2), 2) > 300);
  CHECK(check_all_pairs({4, 8}, mesh_of(4, 1, 2), 1) == 16 * 16);
  CHECK(check_all_pairs({8, 8}, mesh_of(2, 2, 2), 1) == 92 * 92);
  CHECK(check_all_pairs({16}, mesh_of(2, 2, 2), 2) > 300);
}

TEST_CASE("reshard steps: no way over shardings between the two is cheaper") {
  CHECK(dearer_pairs({8, 16}, mesh_of(1, 1, 2), 4) == 0);
  CHECK(dearer_pairs({12, 6}, mesh_of(2, 1, 3), 1) == 0);
  CHECK(dearer_pairs({12}, mesh_of(2, 1, 2), 3) == 0);
  CHECK(dearer_pairs({2, 4, 2}, mesh_of(1, 2, 2), 1) == 0);
  CHECK(dearer_pairs({4, 8}, mesh_of(4, 1, 2), 1) == 0);
  CHECK(dearer_pairs({8, 8}, mesh_of(2, 2, 2), 1) == 0);
  CHECK(dearer_pairs({16}, mesh_of(2, 2, 2), 2) == 0);
}

TEST_CASE("reshard steps: one collective where there is one, slices first, gathers last") {
  const Axis D = Axis::data, E = Axis::expert, T = Axis::tensor;
  const Shape shape{8, 16};
  const Sharding whole = Sharding::whole(2);
  const Sharding rows{{{{T}}, {}}, {}}, columns{{{}, {{T}}}, {}}, in_blocks{{{}, {{T}, 2}}, {}};
  const Sharding sum{{{}, {}}, {T}}, both{{{{D, E}}, {}}, {}};
  CHECK(steps(shape, whole, whole) == "");
  CHECK(steps(shape, sum, whole) == "sum_shards tensor");
  CHECK(steps(shape, sum, rows) == "reduce_scatter tensor 0");
  CHECK(steps(shape, columns, whole) == "all_gather tensor 1");
  CHECK(steps(shape, columns, rows) == "swap_shards tensor 1 0");
  CHECK(steps(shape, whole, rows) == "take_shard tensor 0");
  CHECK(steps(shape, whole, sum) == "one_summand tensor");
  CHECK(steps(shape, both, whole) == "all_gather data,expert 0");
  CHECK(steps(shape, {{{{E, D}}, {}}, {}}, whole) == "all_gather data 0; all_gather expert 0");
  // The inner axis is gathered alone; the outer one takes the inner one with it.
  CHECK(steps(shape, {{{{T, D}}, {}}, {}}, rows) == "all_gather data 0");
  CHECK(steps(shape, {{{{D, T}}, {}}, {}}, rows) == "all_gather data,tensor 0; take_shard tensor 0");
  CHECK(steps(shape, {{{}, {}}, {D, T}}, whole) == "sum_shards data,tensor");
  CHECK(steps(shape, {{{}, {}}, {D, T}}, {{{}, {}}, {T}}) == "sum_shards data");
  CHECK(steps(shape, in_blocks, columns) == "all_gather tensor 1; take_shard tensor 1");
  CHECK(steps(shape, columns, both) == "take_shard data,expert 0; all_gather tensor 1");
  CHECK(steps(shape, {{{{D}}, {}}, {T}}, {{{{D, T}}, {}}, {}}) == "reduce_scatter tensor 0");
  CHECK(steps(shape, {{{{D}}, {}}, {T}}, {{{{T}}, {}}, {}}) == "all_gather data 0; reduce_scatter tensor 0");
}

TEST_CASE("reshard steps: the caller's costs decide") {
  const Axis T = Axis::tensor;
  const ir::TensorType type{DType::f32, {8, 16}};
  const Sharding rows{{{{T}}, {}}, {}}, columns{{{}, {{T}}}, {}};
  auto no_all_to_all = [](const Reshard& step) {
    return step.kind == Reshard::Kind::swap_shards ? 1e9 : passes::bytes_sent(step);
  };
  const auto way = passes::reshard_steps(type, rows, columns, mesh_of(1, 1, 4), no_all_to_all);
  REQUIRE(way.steps.size() == 2);
  CHECK(way.steps[0].kind == Reshard::Kind::all_gather);
  CHECK(way.steps[1].kind == Reshard::Kind::take_shard);
  CHECK(way.cost == 3 * 8 * 4 * 4);
  CHECK(attributes(way.steps[0], mesh_of(2, 1, 4)) ==
        ir::Attributes{{"axes", "tensor"}, {"shards", std::int64_t(4)}, {"axis", std::int64_t(0)}});
  CHECK(attributes(way.steps[0], mesh_of(1, 1, 4)) ==  // all ranks
        ir::Attributes{{"shards", std::int64_t(4)}, {"axis", std::int64_t(0)}});
}
