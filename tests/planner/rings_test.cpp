// Rings of windows beside products against gather-then-multiply and multiply-then-scatter: in double by the ops'
// references, and by kernels on ranks that are threads. The step is an FFN with the sequence split outside of it, and
// its gradients; and one of a model whose sequences have padding.
#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "doubles/inproc.h"
#include "golden/golden.h"
#include "good.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ir/plan.h"
#include "lancet/model/transformer.h"
#include "lancet/schedule/overlap.h"
#include "lancet/schedule/plan_memory.h"
#include "passes/against_logical.h"
#include "planner/planned_ranks.h"
#include "schedule/rings.h"
#include "small_model.h"

using namespace lancet;
using namespace lancet::test;
using schedule::Ring;
using schedule::RingChoice;
using schedule::RingWay;

namespace {

// Extents that are odd: 3 sequences, 5 tokens of each a rank, 7 features, 9 of the hidden layer. The arena has room for
// some more tensors, as that of a model, because something large is made at the end.
std::string text_of_ffn(int ranks) {
  const int tokens = 5 * ranks;
  return fmt::format(R"(
program ffn
input @x : f32[3,5,7]
input @dy : f32[3,5,7]
input @large : f32[64,64]
parameter @w : f32[9,7]
parameter @b : f32[9]
parameter @v : f32[7,9]
%0 : f32[3,{0},7] = all_gather(@x) {{axes=tensor, shards={1}, axis=1}}  # expert forward ln.all_gather
%1 : f32[3,{0},9] = linear(%0, @w, @b)  # compute forward fc
%2 : f32[3,{0},9] = gelu(%1)  # compute forward gelu
%3 : f32[3,{0},7] = linear(%2, @v)  # compute forward proj
%4 : f32[3,5,7] = reduce_scatter(%3) {{axes=tensor, shards={1}, axis=1}}  # expert forward proj.reduce_scatter
%5 : f32[3,{0},7] = all_gather(@dy) {{axes=tensor, shards={1}, axis=1}}  # expert dx dy.all_gather
%6 : f32[3,{0},9] = linear_dx(%5, @v)  # compute dx proj
%7 : f32[7,9] = linear_dw(%5, %2) {{bias=0}}  # compute dw proj
%8 : f32[3,{0},9] in %6 = gelu_dx(%6, %1)  # compute dx gelu
%9 : f32[3,{0},7] = linear_dx(%8, @w)  # compute dx fc
%10 : f32[3,{0},7] = all_gather(@x) {{axes=tensor, shards={1}, axis=1}}  # expert dw ln.all_gather
%11 : f32[9,7], %12 : f32[9] = linear_dw(%8, %10) {{bias=1}}  # compute dw fc
%13 : f32[3,5,7] = reduce_scatter(%9) {{axes=tensor, shards={1}, axis=1}}  # expert dx fc.reduce_scatter
%14 : f32[64,64] = gelu(@large)  # compute dx large
output y = %4
output dv = %7
output dw = %11
output db = %12
output dx = %13
output large = %14
)",
                     tokens, ranks);
}

constexpr std::size_t gathers_x = 0, scatters_y = 1, gathers_dy = 2, scatters_dx = 4;

using Outputs = std::map<std::string, std::vector<DoubleTensor>>;  // by rank

// What each rank of the ring has of the named tensors.
std::map<std::string, std::vector<GuardedTensor>> values_of_ranks(const ir::Program& program, int ranks) {
  std::map<std::string, std::vector<GuardedTensor>> values;
  for (const ir::Tensor& tensor : program.tensors)
    for (int rank = 0; tensor.number < 0 && rank < ranks; ++rank) {
      std::minstd_rand random(std::uint32_t(rank + 1) * 77);
      std::normal_distribution<double> normal;
      DoubleTensor value{tensor.type, {}};
      for (std::int64_t i = 0; i < tensor.type.shape.elements(); ++i) value.values.push_back(normal(random));
      values[tensor.name].push_back(from_double(value));
    }
  return values;
}

Outputs in_double(const ir::Program& program, int ranks) {
  const ir::Mesh mesh = mesh_with(1, 1, ranks);
  LockStep all(program, mesh);
  for (const auto& [name, of_ranks] : values_of_ranks(program, ranks)) {
    // The whole along the first dimension, of which each rank has its shard.
    DoubleTensor whole = to_double(of_ranks[0]);
    ir::Sharding sharding = ir::Sharding::whole(std::size_t(whole.shape().rank()));
    sharding.dimensions[0].axes = {ir::Axis::tensor};
    whole.type.shape.set(0, whole.type.shape[0] * ranks);
    for (std::size_t rank = 1; rank < of_ranks.size(); ++rank)
      for (const double x : to_double(of_ranks[rank]).values) whole.values.push_back(x);
    all.set(name, whole, sharding);
  }
  all.run();
  Outputs outputs;
  for (const ir::Output& output : program.outputs) outputs[output.name] = all.of(output.tensor);
  return outputs;
}

// By kernels; a late rank begins its steps 50 ms after the others.
Outputs on_threads(const ir::Program& program, int ranks, int late = -1) {
  const ir::Mesh mesh = mesh_with(1, 1, ranks);
  const ir::Plan plan = schedule::plan_memory(program, ir::dependencies(program));
  require_sound(ir::verify(plan));
  const std::vector<const ir::Plan*> plans(std::size_t(ranks), &plan);
  require_sound(ir::verify_ranks(plans, mesh));
  const auto values = values_of_ranks(program, ranks);
  std::vector<std::map<std::string, DoubleTensor>> of_ranks(static_cast<std::size_t>(ranks));
  require_sound(comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    RankValues mine;
    for (const auto& [name, of_rank] : values) mine.emplace(name, of_rank[std::size_t(world.rank())]);
    return run_rank(plan, mesh, world, mine, of_ranks[std::size_t(world.rank())],
                    std::chrono::milliseconds(world.rank() == late ? 50 : 0));
  }));
  Outputs outputs;
  for (const auto& of_rank : of_ranks)
    for (const auto& [name, value] : of_rank) outputs[name].push_back(value);
  return outputs;
}

double largest_difference(const Outputs& a, const Outputs& b) {
  double largest = 0;
  for (const auto& [name, ranks] : a)
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const std::vector<double>&x = ranks[rank].values, &y = b.at(name).at(rank).values;
      REQUIRE(x.size() == y.size());
      for (std::size_t i = 0; i < x.size(); ++i)
        largest = std::max(largest, std::abs(x[i] - y[i]) / (1 + std::abs(y[i])));
    }
  return largest;
}

bool same_bits(const Outputs& a, const Outputs& b) { return largest_difference(a, b) == 0; }

// All choices of one ring while the others are whole or go one way, and some in which each ring chooses at random.
std::vector<std::vector<RingChoice>> some_choices(const std::vector<Ring>& rings) {
  std::vector<std::vector<RingChoice>> all;
  for (const bool others : {false, true})
    for (std::size_t r = 0; r < rings.size(); ++r)
      for (const RingChoice& choice : schedule::choices_of(rings[r])) {
        std::vector<RingChoice>& choices = all.emplace_back(rings.size());
        for (std::size_t i = 0; others && i < rings.size(); ++i) choices[i] = schedule::choices_of(rings[i])[1];
        choices[r] = choice;
      }
  std::minstd_rand random(5);
  for (int i = 0; i < 20; ++i)
    for (std::vector<RingChoice>& choices = all.emplace_back(); const Ring& ring : rings) {
      const auto own = schedule::choices_of(ring);
      choices.push_back(own[random() % own.size()]);
    }
  return all;
}

std::string in_words(const std::vector<RingChoice>& choices) {
  std::string text;
  for (const RingChoice& choice : choices)
    text += fmt::format("{}{} ", int(choice.way), choice.weight_gradients ? "w" : "");
  return text;
}

int count_of(const ir::Program& program, std::string_view op) {
  return int(std::ranges::count(program.instructions, op, &ir::Instruction::op));
}

// Computation takes `product_ms` for products and their windows in proportion to their rows, messages 1 ms for each
// shard; copies and sums nothing.
struct RingCosts final : cost::Costs {
  double product_ms = 1, latency_ms = 0, copy_ms = 0;
  int ranks = 4;
  std::optional<double> compute_ms(std::string_view key) const override {
    if (!key.starts_with("linear")) return copy_ms;
    return key.find(fmt::format("[3,{},", 5 * ranks)) != key.npos ? product_ms * ranks : product_ms;
  }
  double all_to_all_ms(double bytes, ir::Axes = {}) const override { return latency_ms + bytes / (4 * 3 * 5 * 7); }
  double all_reduce_ms(double, ir::Axes = {}) const override { return 0; }
  cost::CoreCost all_to_all_core() const override { return {}; }
  cost::CoreCost all_reduce_core() const override { return {}; }
  double launch_ms() const override { return 0; }
  cost::Interference interference() const override { return {}; }
};

// The logical step of a block with experts, two sequences of `tokens` tokens each, which `ranks` ranks split.
ir::Program step_of_model(int ranks, std::int64_t tokens, bool sequence_parallel) {
  config::Model model = small_model();
  model.n_layer = 1;
  model.n_head = 24;
  model.n_embd = 48;
  const auto step = test::good(passes::shard(
      passes::autodiff(model::build_forward(
          model, {.batch = 2, .sequence = tokens, .tensor_ranks = ranks, .sequence_parallel = sequence_parallel})),
      mesh_with(1, 1, ranks)));
  return *step;
}

schedule::Candidate with_collective_matmul(const ir::Program& program, const cost::Costs& costs) {
  const auto step = test::good(schedule::Step::make(program, costs, {}));
  const auto turns = schedule::take_turns(*step, {}, schedule::program_order(*step));
  return schedule::collective_matmul(*step, {}, turns);
}

}  // namespace

TEST_CASE("rings: which collectives of a step can be rings, and with which products") {
  const ir::Program program = test::program(text_of_ffn(4));
  const std::vector<Ring> rings = schedule::find_rings(program);
  REQUIRE(rings.size() == 5);
  const auto label = [&](std::size_t i) { return program.instructions[i].op + " " + program.instructions[i].label; };
  const auto labels = [&](const std::vector<std::size_t>& list) {
    std::string text;
    for (const std::size_t i : list) text += label(i) + ";";
    return text;
  };
  CHECK(label(rings[0].collective) + ": " + labels(rings[0].products) == "all_gather ln.all_gather: linear fc;");
  CHECK(label(rings[1].collective) + ": " + labels(rings[1].products) ==
        "reduce_scatter proj.reduce_scatter: linear proj;");
  CHECK(labels(rings[2].products) + labels(rings[2].weight_gradients) == "linear_dx proj;linear_dw proj;");
  CHECK(labels(rings[3].products) + labels(rings[3].weight_gradients) == "linear_dw fc;");
  CHECK(label(rings[4].collective) + ": " + labels(rings[4].products) ==
        "reduce_scatter fc.reduce_scatter: linear_dx fc;");
  CHECK(schedule::choices_of(rings[1]).size() == 4);  // whole, one way, two sums, both ways
  CHECK(schedule::choices_of(rings[2]).size() == 5);
}

TEST_CASE("rings: a tensor that is not made by a product, or is read by others, is no ring") {
  const auto rings_in = [](std::string_view text) {
    return schedule::find_rings(test::program(std::string(text))).size();
  };
  const std::string head = "program p\ninput @x : f32[3,4,6]\nparameter @w : f32[6,6]\n";
  CHECK(rings_in(head + R"(%0 : f32[3,8,6] = all_gather(@x) {shards=2, axis=1}  # expert forward a
%1 : f32[3,8,6] = gelu(%0)  # compute forward b
output y = %1
)") == 0);
  CHECK(rings_in(head + R"(%0 : f32[3,4,6] = linear(@x, @w)  # compute forward a
%1 : f32[3,2,6] = reduce_scatter(%0) {shards=2, axis=1}  # expert forward b
%2 : f32[3,4,6] = gelu(%0)  # compute forward c
output y = %1
output z = %2
)") == 0);
  // The shards are of the features that the product sums over.
  CHECK(rings_in(head + R"(parameter @v : f32[6,12]
%0 : f32[3,4,12] = all_gather(@x) {shards=2, axis=2}  # expert forward a
%1 : f32[3,4,6] = linear(%0, @v)  # compute forward b
output y = %1
)") == 0);
  // Three blocks, as of queries, keys and values.
  CHECK(rings_in(head + R"(%0 : f32[9,4,6] = all_gather(@x) {shards=3, axis=0, blocks=3}  # expert forward a
%1 : f32[9,4,6] = linear(%0, @w)  # compute forward b
output y = %1
)") == 0);
  // More windows than XLA's loops have trips.
  CHECK(rings_in(head + R"(%0 : f32[3,132,6] = all_gather(@x) {shards=33, axis=1}  # expert forward a
%1 : f32[3,132,6] = linear(%0, @w)  # compute forward b
output y = %1
)") == 0);
}

TEST_CASE("rings: gradients of weights that the ranks hold as copies are no sums over windows") {
  const auto weight_gradients = [](const std::string& bias) {
    const ir::Program program = test::program(fmt::format(R"(
program p
input @dy : f32[3,4,16]
input @x : f32[3,8,8]
input @schedule : f32[4]
parameter @w : f32[16,8{{tensor}}]
parameter @b : f32[{0}]
state @w.m : f32[16,8{{tensor}}]
state @b.m : f32[{0}]
%0 : f32[3,8,16] = all_gather(@dy) {{axes=tensor, shards=2, axis=1}}  # expert dx dy
%1 : f32[16,8], %2 : f32[16] = linear_dw(%0, @x) {{bias=1}}  # compute dw proj
%3 : f32[16] in %2 = all_reduce(%2) {{axes=data}}  # reduce sync bucket
sgd(&@w, &@w.m, %1, @schedule) {{momentum=0.9, weight_decay=0.0}}  # compute update w
sgd(&@b, &@b.m, %3, @schedule) {{momentum=0.9, weight_decay=0.0}}  # compute update b
)",
                                                          bias));
    std::size_t count = 0;
    for (const Ring& ring : schedule::find_rings(program)) count += ring.weight_gradients.size();
    return count;
  };
  CHECK(weight_gradients("16{tensor}") == 1);
  CHECK(weight_gradients("16") == 0);
}

TEST_CASE("rings: in every way the step is that of gather-then-multiply and multiply-then-scatter") {
  for (const int ranks : {2, 3, 4, 8}) {
    const ir::Program program = test::program(text_of_ffn(ranks));
    const std::vector<Ring> rings = schedule::find_rings(program);
    REQUIRE(rings.size() == 5);
    const Outputs expected = in_double(program, ranks);
    for (const auto& choices : some_choices(rings)) {
      INFO(ranks << " ranks, " << in_words(choices));
      const ir::Program ringed = schedule::with_rings(program, rings, choices).program;
      require_sound(ops::verify(ringed));
      CHECK(largest_difference(in_double(ringed, ranks), expected) < 1e-12);
    }
  }
}

TEST_CASE("rings: in a model the step is that of the whole sequences in every way") {
  for (const int ranks : {2, 3, 4, 8})
    for (const std::int64_t tokens : {ranks, 2 * ranks}) {
      const ir::Mesh mesh = mesh_with(1, 1, ranks);
      const ir::Program whole = step_of_model(ranks, tokens, false);
      const ir::Program local = partitioned(step_of_model(ranks, tokens, true), mesh);
      const Values values = random_values(whole, 67, 11);
      CHECK(difference(whole, local, mesh, values, 1e-12) == "");
      const std::vector<Ring> rings = schedule::find_rings(local);
      REQUIRE(rings.size() >= 8);
      auto all = some_choices(rings);
      all.erase(all.begin(), all.end() - 8);  // those in which each ring chooses at random
      all.emplace_back(rings.size(), RingChoice{RingWay::one_way, true});
      for (const auto& choices : all) {
        INFO(ranks << " ranks, " << tokens << " tokens, " << in_words(choices));
        const ir::Program ringed = schedule::with_rings(local, rings, choices).program;
        require_sound(ops::verify(ringed));
        CHECK(difference(whole, ringed, mesh, values, 1e-12) == "");
      }
    }
}

TEST_CASE("rings: on threads, gathered windows keep all bits, and sums are rounded differently at most") {
  for (const int ranks : {2, 3, 4, 8}) {
    const ir::Program program = test::program(text_of_ffn(ranks));
    const std::vector<Ring> rings = schedule::find_rings(program);
    const Outputs expected = on_threads(program, ranks);
    for (const RingWay way : {RingWay::one_way, RingWay::both_ways}) {
      if (way == RingWay::both_ways && ranks == 2) continue;
      std::vector<RingChoice> choices(rings.size());
      choices[gathers_x].way = choices[gathers_dy].way = way;
      INFO(ranks << " ranks, " << in_words(choices));
      CHECK(same_bits(on_threads(schedule::with_rings(program, rings, choices).program, ranks), expected));
    }
    auto all = some_choices(rings);
    all.erase(all.begin(), all.end() - 6);
    for (const auto& choices : all) {
      INFO(ranks << " ranks, " << in_words(choices));
      CHECK(largest_difference(on_threads(schedule::with_rings(program, rings, choices).program, ranks), expected) <
            1e-5);
    }
  }
}

TEST_CASE("rings: a rank that is 50 ms late changes no bit") {
  constexpr int ranks = 4;
  const ir::Program program = test::program(text_of_ffn(ranks));
  const std::vector<Ring> rings = schedule::find_rings(program);
  for (const std::size_t last : {1u, 2u, 3u}) {
    std::vector<RingChoice> choices;
    for (const Ring& ring : rings) {
      const auto own = schedule::choices_of(ring);
      choices.push_back(own[std::min<std::size_t>(last, own.size() - 1)]);
    }
    const ir::Program ringed = schedule::with_rings(program, rings, choices).program;
    CHECK(same_bits(on_threads(ringed, ranks, int(last)), on_threads(ringed, ranks)));
  }
}

TEST_CASE("rings: nothing is joined where products, and what is between them, stay in windows") {
  const ir::Program program = test::program(text_of_ffn(4));
  const std::vector<Ring> rings = schedule::find_rings(program);
  std::vector<RingChoice> choices(rings.size(), {RingWay::one_way, true});
  choices[scatters_y] = choices[scatters_dx] = {RingWay::two_sums, false};
  const ir::Program all = schedule::with_rings(program, rings, choices).program;
  CHECK(count_of(all, "join_windows") == 0);
  CHECK(count_of(all, "take_window") == 0);
  CHECK(count_of(all, "gelu") == 4 + 1);
  CHECK(count_of(all, "gelu_dx") == 4);
  CHECK(count_of(all, "permute_shards") == 5 * 3);
  // Weight gradients that read the whole: x, dy, and what both products read beside them.
  for (RingChoice& choice : choices) choice.weight_gradients = false;
  choices[3].way = RingWay::whole;
  const ir::Program kept = schedule::with_rings(program, rings, choices).program;
  CHECK(count_of(kept, "linear_dw") == 2);
  CHECK(count_of(kept, "join_windows") == 3);
  CHECK(count_of(kept, "take_window") == 0);
  // A ring alone joins what is read whole, and takes what was made whole.
  choices.assign(rings.size(), {});
  choices[gathers_x].way = RingWay::one_way;
  CHECK(count_of(schedule::with_rings(program, rings, choices).program, "join_windows") == 1);
  choices[gathers_x] = {};
  choices[scatters_y].way = RingWay::both_ways;
  CHECK(count_of(schedule::with_rings(program, rings, choices).program, "take_window") == 4);
}

TEST_CASE("collective_matmul: the simulator takes rings whose messages products hide") {
  RingCosts costs;
  const ir::Program program = test::program(text_of_ffn(costs.ranks));
  const schedule::Candidate found = with_collective_matmul(program, costs);
  // 6 products of 4 ms; 5 collectives of 3 ms. In windows only the first message of the step and the last of each pass
  // have nothing to run beside.
  CHECK(found.timeline.makespan < 30);
  CHECK(found.timeline.exposed < 6);
  CHECK(count_of(found.program, "all_gather") == 0);
  CHECK(count_of(found.program, "reduce_scatter") == 0);
  require_sound(ops::verify(found.program));
  require_sound(ir::verify(schedule::plan_memory(found.program, found.needed)));
  CHECK(largest_difference(in_double(found.program, costs.ranks), in_double(program, costs.ranks)) < 1e-12);
}

TEST_CASE("the cost rule: the longer of computation and messages against both one after the other") {
  // 4 windows of 2 ms: 8 ms, for a product of 6 and a message of 3.
  CHECK(schedule::RingTimes{8, 3, 6, 3}.pays(4));
  CHECK_FALSE(schedule::RingTimes{9, 3, 6, 3}.pays(4));  // as long as the whole
  // Messages of 6 ms follow one window of 2, for a product of 6 and a message of 3.
  CHECK(schedule::RingTimes{8, 6, 6, 3}.pays(4));
  CHECK_FALSE(schedule::RingTimes{8, 7, 6, 3}.pays(4));
  CHECK(schedule::RingTimes{8, 7, 6, 3}.pays(8));  // of more windows the first is shorter
}

TEST_CASE("collective_matmul: no ring where messages cost more than they hide, or copies do") {
  const ir::Program program = test::program(text_of_ffn(4));
  RingCosts slow_messages;
  slow_messages.latency_ms = 10;
  const schedule::Candidate whole = with_collective_matmul(program, slow_messages);
  CHECK(count_of(whole.program, "permute_shards") == 0);
  RingCosts no_products;
  no_products.product_ms = 0;
  CHECK(count_of(with_collective_matmul(program, no_products).program, "permute_shards") == 0);
}

TEST_CASE("collective_matmul: a small plan") {
  RingCosts costs;
  costs.ranks = 2;
  const schedule::Candidate found = with_collective_matmul(test::program(text_of_ffn(2)), costs);
  require_golden("collective_matmul_ffn.ir", ir::print(schedule::plan_memory(found.program, found.needed)));
}
