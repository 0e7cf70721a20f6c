// The placement of all-reduces: every gradient is reduced once, for any chunks, and the step gets no longer.
#include <algorithm>
#include <map>
#include <set>

#include "golden/golden.h"
#include "lancet/base/flat_shard.h"
#include "lancet/ir/dependencies.h"
#include "lancet/schedule/overlap.h"
#include "lancet/schedule/plan_memory.h"
#include "lancet/schedule/simulate.h"
#include "lancet/schedule/step.h"
#include "schedule/orders.h"
#include "steps/fake_costs.h"
#include "steps/models.h"
#include "steps/support.h"

namespace lancet {

using namespace test;
using schedule::Ordered;
using schedule::ReduceReport;

namespace {

ir::Program reduce_step(const ir::Program& forward, double clip_grad, bool accumulate = false) {
  passes::OptimizeOptions o;
  o.clip_grad = clip_grad;
  o.mesh = ir::of_experts(2);
  return passes::optimize(
      passes::sync(of_rank(passes::autodiff(forward, accumulate), ir::of_experts(2)), ir::of_experts(2), 1 << 30), o);
}

Ordered reduce_scheduled(const ir::Program& p, const FakeCosts& costs, ReduceReport* report = nullptr) {
  return schedule::reduce_schedule(p, loads_of(p, costs), costs, report);
}

schedule::Dependencies needed_of(const Ordered& o) {
  schedule::Dependencies needed = ir::dependencies(o.program);
  schedule::join(needed, o.extra);
  return needed;
}

double makespan(const Ordered& o, const FakeCosts& costs) {
  return schedule::simulate(o.program, needed_of(o), loads_of(o.program, costs), costs.beside, costs.launch).makespan;
}

// Per gradient (root of its memory), the number of bytes that all-reduces sum; slices must not overlap.
std::map<std::string, std::int64_t> reduced(const ir::Program& p) {
  std::map<std::string, std::vector<ir::Region>> regions;
  for (const ir::Instruction& i : p.instructions) {
    if (!i.label.starts_with("bucket.")) continue;
    for (ir::TensorId id : i.operands) regions[p.display(p.root(id))].push_back(p.region(id));
  }
  std::map<std::string, std::int64_t> bytes;
  for (auto& [name, list] : regions) {
    std::sort(list.begin(), list.end(), [](const ir::Region& a, const ir::Region& b) { return a.begin < b.begin; });
    for (std::size_t k = 0; k < list.size(); ++k) {
      bytes[name] += list[k].end - list[k].begin;
      if (k > 0) REQUIRE(list[k - 1].end <= list[k].begin);
    }
  }
  return bytes;
}

// The operations of the compute stream with their operands' memory, in any order.
std::multiset<std::string> computation(const ir::Program& p) {
  std::multiset<std::string> lines;
  for (const ir::Instruction& i : p.instructions) {
    if (i.stream == ir::Stream::reduce) continue;
    std::string line = i.op + " " + i.label;
    for (ir::TensorId id : i.operands) line += " " + p.display(p.root(id));
    lines.insert(line);
  }
  return lines;
}

void check_same_step(const ir::Program& before, const Ordered& after) {
  require_sound(ops::verify(after.program));
  CHECK(reduced(before) == reduced(after.program));
  CHECK(computation(before) == computation(after.program));
  const std::string text = ir::print(after.program);
  CHECK((ir::print(program(text)) == text));
  for (const schedule::Dependencies& needed : {needed_of(after), schedule::turns(after.program, needed_of(after))}) {
    const ir::Plan plan = schedule::plan_memory(after.program, needed);
    require_sound(ir::verify(plan));
    const ir::HappensBefore order(plan.program, plan.waits);
    for (std::size_t i = 0; i < after.extra.size(); ++i)
      for (ir::InstructionId j : after.extra[i]) CHECK(order.ordered(j, {std::int32_t(i)}));
  }
}

// A network on which both kinds of communication matter; computation hides about half of it.
FakeCosts busy_network() {
  FakeCosts costs;
  costs.flops_per_ms = costs.bytes_per_ms = 2e6;
  costs.network_bytes_per_ms = 2e4;
  costs.reduce_bytes_per_ms = 8e4;
  return costs;
}

// The small MoE with a vocabulary whose gradient is worth splitting: f32[4099,8], 128 KiB.
ir::Program large_vocabulary() {
  std::string text(moe);
  for (const auto& [from, to] : std::map<std::string, std::string>{
           {"bf16[11,8]", "bf16[4099,8]"}, {"bf16[4,4,11]", "bf16[4,4,4099]"}, {"vocabulary=11", "vocabulary=4099"}})
    for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
      text.replace(at, from.size(), to);
  return program(text);
}

}  // namespace

TEST_CASE("all-reduces: chunks, slices and waits of the small model") {
  for (double clip_grad : {0.0, 1.0})
    for (double reduce : {1e4, 8e4, 4e5, 4e6}) {
      INFO("clip " << clip_grad << ", reduce " << reduce);
      FakeCosts costs = busy_network();
      costs.reduce_bytes_per_ms = reduce;
      costs.launch = 0.002;
      const ir::Program before = reduce_step(model(2), clip_grad);
      ReduceReport report;
      const Ordered after = reduce_scheduled(before, costs, &report);
      check_same_step(before, after);
      CHECK(report.before_ms == Approx(makespan({before, {}}, costs)));
      CHECK(report.after_ms == Approx(makespan(after, costs)));
      CHECK(report.after_ms <= report.before_ms);
      if (reduce < 1e5) CHECK(report.after_ms < report.before_ms);
      const Ordered again = reduce_scheduled(before, costs);
      CHECK(ir::print(again.program) == ir::print(after.program));
      CHECK(again.extra == after.extra);
    }
}

TEST_CASE("all-reduces: unclipped updates run as soon as their gradients are reduced") {
  FakeCosts costs = busy_network();
  costs.reduce_bytes_per_ms = 2e4;
  ReduceReport clipped, unclipped;
  reduce_scheduled(reduce_step(model(2), 1), costs, &clipped);
  reduce_scheduled(reduce_step(model(2), 0), costs, &unclipped);
  CHECK(unclipped.after_ms < clipped.after_ms);
  CHECK(unclipped.chunk_bytes > 0);
}

TEST_CASE("all-reduces: one MoE layer as text") {
  FakeCosts costs = busy_network();
  costs.network_start_ms = 0;
  const ir::Program before = reduce_step(large_vocabulary(), 0);
  ReduceReport report;
  const Ordered after = reduce_scheduled(before, costs, &report);
  check_same_step(before, after);
  ir::Plan plan = schedule::plan_memory(after.program, needed_of(after));
  require_golden("reduce_schedule_moe.ir", ir::print(plan));
}

TEST_CASE("all-reduces: accumulated gradients") {
  const FakeCosts costs = busy_network();
  const ir::Program before = reduce_step(model(2), 0, true);
  check_same_step(before, reduce_scheduled(before, costs));
}

TEST_CASE("all-reduces: updates amid the backward pass read what their chunk has reduced") {
  const FakeCosts costs = busy_network();
  passes::OptimizeOptions options;
  options.mesh = ir::of_experts(2);
  const ir::Program late = passes::optimize(
      passes::sync(of_rank(passes::autodiff(model(2)), ir::of_experts(2)), ir::of_experts(2), 1), options);
  // Each update follows the all-reduce of its gradient, as in schedules that fill gaps with updates.
  std::vector<schedule::Order> after(late.instructions.size());
  const schedule::Dependencies needed = ir::dependencies(late);
  for (std::size_t i = 0; i < needed.size(); ++i)
    for (const ir::InstructionId before : needed[i])
      if (late.instructions[i].role == ir::Role::update &&
          late.instructions[before.index()].stream == ir::Stream::reduce)
        after[before.index()].push_back({std::int32_t(i)});
  const ir::Program early = schedule::permuted(late, schedule::reordered(late, needed, after));
  const schedule::Chunked cut = schedule::cut_all_reduces(early, loads_of(early, costs), costs, 1 << 20);
  require_sound(ops::verify(cut.program));
  CHECK(reduced(cut.program) == reduced(early));
  CHECK(computation(cut.program) == computation(early));
  check_same_step(early, reduce_scheduled(early, costs));
}

TEST_CASE("all-reduces: programs that stay unchanged") {
  const FakeCosts costs = busy_network();
  for (const ir::Program& p : {model(2), passes::autodiff(model(1)), program(tied)}) {
    ReduceReport report;
    const Ordered after = reduce_scheduled(p, costs, &report);
    CHECK(ir::print(after.program) == ir::print(p));
    CHECK(after.extra.empty());
    CHECK(report.before_ms == report.after_ms);
  }
}

TEST_CASE("all-reduces: 24 blocks") {
  const ir::Program before = reduce_step(grown(model(2), 10), 0);
  FakeCosts costs = busy_network();
  const ir::Program moved = schedule::dw_schedule(before, loads_of(before, costs), costs.beside);
  ReduceReport report;
  const Ordered after = reduce_scheduled(moved, costs, &report);
  const schedule::Timeline t =
      schedule::simulate(after.program, needed_of(after), loads_of(after.program, costs), costs.beside, costs.launch);
  CHECK(t.makespan < 1.001 * (t.compute + t.exposed));  // compute waits only for all-to-alls of the forward pass
  check_same_step(before, after);
  CHECK(report.after_ms < report.before_ms);
}

// Chunks of reduce-scatters: every element of a rank's shards is summed once, for any chunks, and the plan is sound.

namespace {

ir::Program scattered_step(double clip_grad, DType message) {
  const ir::Mesh mesh = ir::of_experts(2);
  passes::OptimizeOptions options;
  options.clip_grad = clip_grad;
  options.mesh = mesh;
  const ir::Program backward = of_rank(passes::autodiff(model(2)), mesh);
  return passes::optimize(passes::sync(backward, mesh, 1 << 30, true, {.shards = true, .message = message}), options);
}

std::vector<cost::OpCost> scattered_loads(const ir::Program& p, const FakeCosts& costs) {
  std::vector<cost::OpCost> loads = loads_of(p, costs);
  for (std::size_t i = 0; i < loads.size(); ++i)
    if (p.instructions[i].stream == ir::Stream::reduce) loads[i] = cost::reduce_cost(costs, p, p.instructions[i]);
  return loads;
}

bool is_scatter(const ir::Instruction& at) { return ops::kind(at) == ops::Kind::flat_reduce_scatter; }

// By gradient: the elements of the rank's shard that are summed, as ranges in order.
std::map<std::string, std::int64_t> summed(const ir::Program& p) {
  std::map<std::string, std::map<std::int64_t, std::int64_t>> ranges;
  for (const ir::Instruction& at : p.instructions)
    for (std::size_t k = 0; is_scatter(at) && k < at.operands.size(); ++k) {
      const std::int64_t begin = at.attributes.integer("begin", 0);
      ranges[p.display(at.operands[k])][begin] = p.type(at.results[k]).shape.elements();
      if (at.attributes.has("begin")) CHECK(p.region(at.results[k]).begin == 4 * begin);
    }
  std::map<std::string, std::int64_t> elements;
  for (const auto& [name, list] : ranges)
    for (const auto& [begin, length] : list) {
      CHECK(begin == elements[name]);
      elements[name] += length;
    }
  return elements;
}

}  // namespace

TEST_CASE("reduce-scatters: chunks and slices of every size sum the same shards") {
  const DType message = GENERATE(DType::f32, DType::bf16);
  FakeCosts costs;
  costs.network_start_ms = 0;
  const ir::Program before = scattered_step(1, message);
  const auto loads = scattered_loads(before, costs);
  const auto expected = summed(before);
  std::size_t most = 0;
  for (const std::int64_t chunk : {1 << 10, 4 << 10, 64 << 10}) {
    const schedule::Chunked after = schedule::cut_all_reduces(before, loads, costs, chunk);
    INFO("chunks of " << chunk);
    require_sound(ops::verify(after.program));
    CHECK(summed(after.program) == expected);
    const std::string text = ir::print(after.program);
    CHECK(ir::print(program(text)) == text);
    const ir::Plan plan = schedule::plan_memory_sequentially(after.program);
    require_sound(ir::verify(plan));
    most = std::max(most, std::size_t(std::ranges::count_if(after.program.instructions, is_scatter)));
  }
  CHECK(most > 20);
}

TEST_CASE("reduce-scatters are placed like all-reduces, and the step gets no longer") {
  for (const double clip_grad : {0.0, 1.0})
    for (const double reduce : {1e4, 8e4, 4e5}) {
      FakeCosts costs;
      costs.flops_per_ms = costs.bytes_per_ms = 2e6;
      costs.network_bytes_per_ms = 2e4;
      costs.reduce_bytes_per_ms = reduce;
      costs.launch = 0.002;
      const ir::Program before = scattered_step(clip_grad, DType::f32);
      schedule::ReduceReport report;
      const schedule::Ordered after = schedule::reduce_schedule(before, scattered_loads(before, costs), costs, &report);
      INFO("clip " << clip_grad << ", reduce " << reduce);
      require_sound(ops::verify(after.program));
      CHECK(summed(after.program) == summed(before));
      CHECK(report.after_ms <= report.before_ms);
      schedule::Dependencies needed = ir::dependencies(after.program);
      schedule::join(needed, after.extra);
      require_sound(ir::verify(schedule::plan_memory(after.program, needed)));
    }
}

}  // namespace lancet
