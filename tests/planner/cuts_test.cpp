// Every cut: split, run, join. One MoE layer, forward and backward, on ranks that are threads, with two experts a
// token, a rank that has no tokens and a rank whose experts get none. What no sum over rows splits has the bits of the
// whole.
#include <fmt/format.h>

#include <cmath>
#include <set>

#include "declared_costs.h"
#include "doubles/inproc.h"
#include "lancet/ir/dependencies.h"
#include "lancet/planner/planner.h"
#include "lancet/schedule/plan_memory.h"
#include "lancet/schedule/step.h"
#include "planner/planned_ranks.h"
#include "schedule/layer_cuts.h"
#include "steps/models.h"

using namespace lancet;
using namespace lancet::test;
using schedule::cut_named;

namespace {

constexpr int layer_ranks = 4;
constexpr std::int64_t layer_tokens = 12, layer_experts = 8, idle_rank = 1, unloved_rank = 2;

constexpr std::string_view moe_layer = R"(
input @x : f32[2,6,8]
input @dy : f32[2,6,8]
input @expert : i32[12,2]
input @slot : i32[12,2]
input @weight : f32[12,2]
input @filled : i32[8,2]
parameter @w : f32[2{expert},16,8]
parameter @b : f32[2{expert},16]
parameter @v : f32[2{expert},8,16]
parameter @c : f32[2{expert},8]
%0 : i32[2,5] = all_to_all_counts(@filled) {ranks=4}  # expert forward m.counts
%1 : f32[8,24,8] = dispatch(@x, @expert, @slot, @filled) {slots=24}  # compute forward m.dispatch
%2 : f32[2,96,8] = all_to_all(%1, @filled, %0) {tokens=24}  # expert forward m.there
%3 : f32[2,96,16] = expert_linear(%2, @w, @b, %0) {tokens=24}  # compute forward m.fc
%4 : f32[2,96,16] = gelu(%3, %0) {tokens=24}  # compute forward m.gelu
%5 : f32[2,96,8] = expert_linear(%4, @v, @c, %0) {tokens=24}  # compute forward m.proj
%6 : f32[8,24,8] = all_to_all_back(%5, @filled, %0) {tokens=24}  # expert forward m.back
%7 : f32[2,6,8] = combine(%6, @expert, @slot, @weight, @filled) {batch=2}  # compute forward m.combine
%8 : f32[8,24,8] in %6, %9 : f32[12,2] = combine_dx(@dy, %6, @expert, @slot, @weight, @filled)  # compute dx m.combine
%10 : f32[2,96,8] = all_to_all(%8, @filled, %0) {tokens=24}  # expert dx m.back
%11 : f32[2,96,16] = expert_linear_dx(%10, @v, %0) {tokens=24}  # compute dx m.proj
%12 : f32[2,8,16], %13 : f32[2,8] = expert_linear_dw(%10, %4, %0) {tokens=24}  # compute dw m.proj
%14 : f32[2,96,16] in %11 = gelu_dx(%11, %3, %0) {tokens=24}  # compute dx m.gelu
%15 : f32[2,96,8] = expert_linear_dx(%14, @w, %0) {tokens=24}  # compute dx m.fc
%16 : f32[2,16,8], %17 : f32[2,16] = expert_linear_dw(%14, %2, %0) {tokens=24}  # compute dw m.fc
%18 : f32[8,24,8] = all_to_all_back(%15, @filled, %0) {tokens=24}  # expert dx m.there
%19 : f32[2,6,8] = dispatch_dx(%18, @expert, @slot) {batch=2}  # compute dx m.dispatch
output y = %7
output dweight = %9
output dx = %19
output dproj = %12
output dproj_bias = %13
output dfc = %16
output dfc_bias = %17
)";

GuardedTensor normal_numbers(const ir::TensorType& type, std::uint64_t stream) {
  GuardedTensor tensor(type);
  fill_normal(tensor, 5, stream);
  return tensor;
}

// The choices of a rank's tokens: two of the experts, none of them on the unloved rank. The idle rank drops all.
RankValues values_of_rank(const ir::Program& program, std::int64_t rank) {
  RankValues values;
  for (std::size_t i = 0; i < program.tensors.size(); ++i) {
    const ir::Tensor& tensor = program.tensors[i];
    if (tensor.number < 0 && tensor.type.dtype != DType::i32)
      values.insert_or_assign(tensor.name, normal_numbers(tensor.type, 100 * std::uint64_t(rank) + i));
  }
  GuardedTensor expert({DType::i32, {layer_tokens, 2}}), slot(expert.type()), filled({DType::i32, {layer_experts, 2}});
  std::fill_n(filled.as<std::int32_t>(), 2 * layer_experts, 0);
  const std::int64_t of_rank = layer_experts / layer_ranks, first = unloved_rank * of_rank;
  for (std::int64_t i = 0; i < 2 * layer_tokens; ++i) {
    std::int64_t e = (i * (rank + 1) + i / 5) % (layer_experts - of_rank);
    if (e >= first) e += of_rank;
    expert.as<std::int32_t>()[i] = std::int32_t(e);
    slot.as<std::int32_t>()[i] = rank == idle_rank ? -1 : filled.as<std::int32_t>()[2 * e + 1]++;
  }
  values.insert_or_assign("expert", std::move(expert));
  values.insert_or_assign("slot", std::move(slot));
  values.insert_or_assign("filled", std::move(filled));
  return values;
}

using LayerOutputs = std::vector<std::map<std::string, DoubleTensor>>;

LayerOutputs run_layer(const ir::Program& program, int late = -1) {
  require_sound(ops::verify(program));
  const ir::Plan plan = schedule::plan_memory(program, ir::dependencies(program));
  require_sound(ir::verify(plan));
  LayerOutputs outputs(layer_ranks);
  require_sound(comm::run_inproc(layer_ranks, [&](comm::Communicator& world) -> Status {
    return run_rank(plan, ir::of_experts(layer_ranks), world, values_of_rank(program, world.rank()),
                    outputs[std::size_t(world.rank())], std::chrono::milliseconds(world.rank() == late ? 50 : 0));
  }));
  return outputs;
}

void check_same(const LayerOutputs& found, const LayerOutputs& expected) {
  for (std::size_t rank = 0; rank < expected.size(); ++rank)
    for (const auto& [name, whole] : expected[rank]) {
      INFO("rank " << rank << ", " << name);
      const std::vector<double>& values = found[rank].at(name).values;
      REQUIRE(values.size() == whole.values.size());
      if (!name.starts_with("dproj") && !name.starts_with("dfc")) {
        CHECK(values == whole.values);  // bit for bit
        continue;
      }
      double worst = 0;  // rows are added up in the order of the buffer
      for (std::size_t i = 0; i < values.size(); ++i) worst = std::max(worst, std::abs(values[i] - whole.values[i]));
      CHECK(worst < 1e-5);
    }
}

schedule::Step layer_step(const ir::Program& program, std::vector<int> counts = {2, 4}) {
  static const test::DeclaredCosts costs;
  auto step = schedule::Step::make(program, costs, std::move(counts));
  if (!step.ok()) FAIL(step.error().message);
  return std::move(step.value());
}

std::string in_16_bits(std::string text) {
  for (const std::string from :
       {"f32[2,6,8]", "f32[2{expert},16,8]", "f32[2{expert},8,16]", "f32[8,24,8]", "f32[2,96,"}) {
    REQUIRE(text.find(from) != std::string::npos);
    for (std::size_t at = 0; (at = text.find(from, at)) != text.npos; at += from.size() + 1)
      text.replace(at, from.size(), "bf16" + from.substr(3));
  }
  return text;
}

}  // namespace

TEST_CASE("cuts: both passes of a layer by split, run, join, with a late rank and without, also in 16 bits") {
  const bool narrow = GENERATE(false, true);
  const ir::Program layer = program(narrow ? in_16_bits(std::string(moe_layer)) : std::string(moe_layer));
  const schedule::Step step = layer_step(layer);
  const LayerOutputs whole = run_layer(layer);
  std::vector<std::pair<std::string, schedule::Split>> splits;
  for (const schedule::Cut* cut : schedule::all_cuts()) {
    INFO(cut->name);
    REQUIRE(step.part_counts(*cut).empty() == cut->by_positions);  // the layer has two sequences
    for (int parts : step.part_counts(*cut))
      splits.emplace_back(fmt::format("{} in {}", cut->name, parts), step.all(*cut, parts));
  }
  for (int sources : {2, 3, 4})
    for (int columns : {2, 4, 8})
      splits.emplace_back(
          fmt::format("{} tiles of source ranks, {} of columns", sources, columns),
          schedule::joined(step.all(cut_named("source_rows"), sources), step.all(cut_named("columns"), columns)));
  splits.emplace_back("slots and columns",
                      schedule::joined(step.all(cut_named("capacity"), 2), step.all(cut_named("columns"), 2)));
  int late = 0;
  for (const auto& [what, split] : splits) {
    INFO(what << (narrow ? " in 16 bits" : "") << ", rank " << late << " is late");
    const ir::Program parts = schedule::rewrite(layer, split).program;
    check_same(run_layer(parts), whole);
    check_same(run_layer(parts, late = (late + 1) % layer_ranks), whole);
  }
}

TEST_CASE("cuts: what may be added to a layer, by split, run, join") {
  const ir::Program layer = program(std::string(moe_layer));
  const schedule::Step step = layer_step(layer);
  const LayerOutputs whole = run_layer(layer);
  const schedule::Split none = step.whole(cut_named("batch"));
  schedule::Split forward = step.all(cut_named("batch"), 2), both = forward;
  for (std::size_t i = step.forward_end(); i < forward.parts.size(); ++i) forward.parts[i] = 1;
  // Source ranks in 2 or 4 tiles, columns in 2 or 4, both; capacity in 2 or 4. Backward: parts, columns, both.
  const std::vector<std::pair<schedule::Split, std::size_t>> bases{
      {none, 1 + 2 * 3 + 2 + 2}, {forward, 1 + 3 + 2}, {both, 1}};
  for (const auto& [base, count] : bases) {
    const schedule::LayerMixes mixes(step, base);
    REQUIRE(mixes.layers() == 1);
    CHECK(mixes.choices(0).size() == count);
    CHECK((mixes.most_hidden_ms() > 0) == (count > 1));
    for (const schedule::LayerCuts& cuts : mixes.choices(0)) {
      INFO(mixes.describe({cuts}));
      check_same(run_layer(schedule::rewrite(layer, mixes.with({cuts})).program), whole);
    }
  }
  const schedule::LayerMixes mixes(step, forward);
  CHECK(mixes.describe({{&cut_named("batch"), 2, 4}}) == "; backward experts in 2 parts, 4 tiles of columns");
  CHECK(mixes.describe({{}}).empty());
}

TEST_CASE("cuts: hosts order the tiles of source ranks") {
  const ir::Program layer = program(std::string(moe_layer));
  const schedule::Step step = layer_step(layer);
  schedule::Split split = step.all(cut_named("source_rows"), 3);
  split.among.on_host = 2;
  const schedule::Rewritten rewritten = schedule::rewrite(layer, split);
  std::vector<std::int64_t> tokens, peers, near;
  for (const ir::Instruction& at : rewritten.program.instructions)
    if (ops::op(at.op).to_experts && at.role == ir::Role::forward) {
      tokens.push_back(at.attributes.integer("tokens"));
      peers.push_back(at.attributes.integer("peers"));
      near.push_back(at.attributes.integer("near"));
    }
  CHECK(tokens == std::vector<std::int64_t>{6, 6, 12});  // of 24: the own rank, the other of the host, the others
  CHECK(peers == std::vector<std::int64_t>{0, 1, 2});
  CHECK(near == std::vector<std::int64_t>{1, 1, 0});
  check_same(run_layer(rewritten.program), run_layer(layer));
}

TEST_CASE("cuts: the own rank's tile costs no message, the others' cost their bytes") {
  const ir::Program layer = program(std::string(moe_layer));
  const schedule::Step step = layer_step(layer);
  const schedule::Cut& sources = cut_named("source_rows");
  const test::DeclaredCosts costs;
  const double row = 8 * 4;  // bytes
  constexpr std::size_t there = 2, product = 3;
  CHECK(step.part_cost(sources, 2, there, 0).ms == 0);
  CHECK(step.part_cost(sources, 2, there, 1).ms == Approx(costs.all_to_all_ms(18 * row)));
  CHECK(step.op_costs()[there].ms == Approx(costs.all_to_all_ms(24 * row * 3 / 4)));
  const double own = step.part_cost(sources, 2, product, 0).ms, others = step.part_cost(sources, 2, product, 1).ms;
  CHECK(own == Approx(0.01 + 32 * 6 / costs.elements_per_ms));
  CHECK(others == Approx(0.01 + 32 * 18 / costs.elements_per_ms));
  // What is put together from stored costs is what the split program costs.
  const schedule::Split split = schedule::joined(step.all(sources, 4), step.all(cut_named("columns"), 2));
  const schedule::Rewritten rewritten = schedule::rewrite(layer, split);
  const auto looked_up = step.op_costs(rewritten, split);
  const auto computed = cost::op_costs(costs, rewritten.program).value();
  for (std::size_t i = 0; i < computed.size(); ++i) {
    INFO(rewritten.program.instructions[i].label);
    CHECK(looked_up[i].ms == computed[i].ms);
  }
}

TEST_CASE("cuts: numbers of parts follow from ranks and features") {
  const ir::Program layer = program(std::string(moe_layer));
  const test::DeclaredCosts costs;
  const auto counts = [&](std::string_view cut, std::vector<int> wanted) {
    return schedule::Step::make(layer, costs, std::move(wanted))->part_counts(cut_named(cut));
  };
  using Counts = std::vector<int>;
  CHECK(counts("source_rows", {2, 4, 8}) == Counts{2, 4});  // tiles of 3 ranks and of 1
  CHECK(counts("source_rows", {4}) == Counts{4});
  CHECK(counts("source_rows", {8}).empty());
  CHECK(counts("columns", {2, 4, 8, 16}) == Counts{2, 4, 8});
  CHECK(counts("peers", {2, 3, 4}) == Counts{2, 4});
  CHECK(counts("columns", {}).empty());
}

TEST_CASE("cuts: only a product whose result goes back alone is cut by columns") {
  ir::Program layer = program(std::string(moe_layer));
  CHECK(layer_step(layer).part_counts(cut_named("columns")) == std::vector<int>{2, 4});
  layer.add_output("rows", layer.instructions[5].results[0]);  // of the second product
  const schedule::AxisRows rows = layer_step(layer).rows(cut_named("columns"));
  CHECK(rows[5] == nullptr);
  CHECK(rows[6] == nullptr);
  CHECK(rows[13] != nullptr);  // in the backward pass, the gradient of the first product's operand
}

TEST_CASE("cuts: each says what it is") {
  std::vector<std::string_view> names;
  for (const schedule::Cut* cut : schedule::all_cuts()) {
    names.push_back(cut->name);
    INFO(cut->name);
    for (const std::string_view words : {cut->words.parts, cut->words.splits, cut->words.pairs, cut->words.rewrites,
                                         cut->words.memory, cut->words.launches, cut->words.source})
      CHECK_FALSE(words.empty());
  }
  for (const std::string_view name : {"batch", "capacity", "columns", "peers", "source_rows"})
    CHECK(std::ranges::count(names, name) == 1);
  for (const schedule::PassCut& cut : schedule::pass_cuts()) names.push_back(cut.name);
  std::set<std::string_view> named;
  for (const planner::PolicyInfo& policy : planner::policies()) named.insert(policy.cuts.begin(), policy.cuts.end());
  CHECK(named == std::set<std::string_view>(names.begin(), names.end()));
}
