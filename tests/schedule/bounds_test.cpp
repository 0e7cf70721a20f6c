// Ideal dependencies: programs whose bounds are known by arithmetic.
#include "lancet/schedule/bounds.h"

#include <limits>

#include "schedule/ideal_jobs.h"
#include "steps/support.h"

using namespace lancet;
using namespace lancet::test;
using cost::OpCost;
using schedule::Bounds;
using schedule::IdealStep;

namespace {

constexpr double tiles = schedule::IdealStepJobs::tiles;

// Two experts of this rank, the tokens of two ranks.
constexpr std::string_view expert_layer = R"(program layer
input @x : f32[4,4,4]
input @filled : i32[4,2]
input @rows : i32[2,3]
parameter @w : f32[2,6,4]
parameter @b : f32[2,6]
%0 : f32[2,8,4] = all_to_all(@x, @filled, @rows) {tokens=16}  # expert forward there
%1 : f32[2,8,6] = expert_linear(%0, @w, @b, @rows) {tokens=16}  # compute forward fc
%2 : f32[4,4,6] = all_to_all_back(%1, @filled, @rows) {tokens=16}  # expert forward back
)";

constexpr std::string_view tensor_parallel = R"(program products
input @x : f32[2,2,4]
parameter @w : f32[6,4]
%0 : f32[2,8,4] = all_gather(@x) {shards=4, axis=1}  # expert forward gather
%1 : f32[2,8,6] = linear(%0, @w)  # compute forward fc
%2 : f32[2,2,6] = reduce_scatter(%1) {shards=4, axis=1}  # expert forward scatter
)";

constexpr std::string_view updated = R"(program updated
input @x : f32[2,4,8]
input @schedule : f32[4]
parameter @first : f32[8,8]
parameter @second : f32[8,8]
state @second.m : f32[8,8]
%0 : f32[2,4,8] = linear(@x, @first)  # compute forward first
%1 : f32[2,4,8] = linear(%0, @second)  # compute forward second
%2 : f32[8,8] = linear_dw(%1, %0) {bias=0}  # compute dw second
%3 : f32[8,8] in %2 = all_reduce(%2)  # reduce sync bucket.0
sgd(&@second, &@second.m, %3, @schedule) {momentum=0.9, weight_decay=0.0}  # compute update second
)";

Bounds bounds_of(std::string_view text, const std::vector<double>& ms,
                 std::int64_t memory_bytes = std::numeric_limits<std::int64_t>::max()) {
  std::vector<schedule::Chunked> variants{{program(text), {}}};
  for (const double each : ms) variants[0].op_costs.push_back({each});
  return schedule::find_bounds(variants, memory_bytes);
}

const IdealStep& way(const Bounds& bounds, std::string_view name) {
  const auto all = schedule::overlap_ways();
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i].name == name) return bounds.ways[i].any;
  FAIL("no way is named " << name);
  throw std::logic_error("not reached");
}

}  // namespace

TEST_CASE("bounds: two all-to-alls and the product between them") {
  const Bounds bounds = bounds_of(expert_layer, {10, 10, 10});
  CHECK(bounds.compute == Approx(10));
  CHECK(bounds.network == Approx(20));
  CHECK(bounds.today.any.ms == Approx(30));
  CHECK(bounds.today.any.exposed == Approx(20));
  // The product ends a tile after the last one that arrives; the message back starts then.
  for (const char* cut : {"source rows", "contracting"}) {
    INFO(cut);
    CHECK(way(bounds, cut).ms == Approx(10 + 10 / tiles + 10));
    CHECK(way(bounds, cut).exposed == Approx(20 + 10 / tiles - 10));
  }
  CHECK(way(bounds, "columns").ms == Approx(10 + 10 + 10 / tiles));
  // The network is busy all the time.
  for (const char* cut : {"rows and columns", "capacity or peers", "batch forward", "batch", "all"}) {
    INFO(cut);
    CHECK(way(bounds, cut).ms == Approx(20));
  }
  // Halves of 5 ms: while one half is in the product, the other is on the network.
  CHECK(way(bounds, "neighbours").ms == Approx(20));
  CHECK(way(bounds, "ring shards").ms == Approx(30));
  // Nothing is updated, so that steps only share the streams; or all but gathers must end first.
  CHECK(way(bounds, "across steps").ms == Approx(20));
  CHECK(way(bounds, "gathers across steps").ms == Approx(30));
}

TEST_CASE("bounds: own rows need no message") {
  // The own half of the rows is multiplied while the others travel; features of own rows come with those of others.
  const Bounds bounds = bounds_of(expert_layer, {10, 20, 0});
  CHECK(bounds.today.any.ms == Approx(30));
  CHECK(way(bounds, "source rows").ms == Approx(20));
  CHECK(way(bounds, "contracting").ms == Approx(20 + 10 / tiles));
}

TEST_CASE("bounds: a product between an all-gather and a reduce-scatter") {
  // Of four shards a rank has its own, begins with it and ends with the summand that it keeps.
  const Bounds bounds = bounds_of(tensor_parallel, {4, 16, 4});
  CHECK(bounds.today.any.ms == Approx(24));
  CHECK(way(bounds, "ring shards").ms == Approx(16));
  CHECK(way(bounds, "ring shards").exposed == Approx(0).margin(1e-9));
  CHECK(way(bounds, "rows and columns").ms == Approx(24));
  // A network that takes as long as the product is never idle.
  CHECK(way(bounds_of(tensor_parallel, {8, 16, 8}), "ring shards").ms == Approx(16));
  CHECK(way(bounds_of(tensor_parallel, {12, 16, 12}), "ring shards").ms == Approx(24));
}

TEST_CASE("bounds: the next step begins before weights that it reads later are updated") {
  const Bounds bounds = bounds_of(updated, {4, 4, 4, 8, 1});
  CHECK(bounds.today.any.ms == Approx(21));
  CHECK(way(bounds, "across steps").ms ==
        Approx(17));  // the first product runs under the all-reduce of the step before
  CHECK(way(bounds, "gathers across steps").ms == Approx(21));
  // Halves meet in the all-reduce; the products of each take half the time.
  CHECK(way(bounds, "neighbours").ms == Approx(21));
}

TEST_CASE("bounds: a limit of memory below that of the step") {
  // With room for nothing only the order of the program is left.
  const Bounds bounds = bounds_of(expert_layer, {10, 10, 10}, 1);
  for (const schedule::IdealSteps& steps : bounds.ways) {
    CHECK(steps.within.ms == Approx(30));
    CHECK(steps.any.ms <= 30 * (1 + 1e-9));
  }
}
