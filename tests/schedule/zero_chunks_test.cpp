// Chunks of reduce-scatters: every element of a rank's shards is summed once, for any chunks, and the plan is sound.
#include "lancet/base/flat_shard.h"
#include "lancet/ir/dependencies.h"
#include "lancet/schedule/overlap.h"
#include "lancet/schedule/plan_memory.h"
#include "schedule/orders.h"
#include "steps/fake_costs.h"
#include "steps/models.h"
#include "steps/support.h"

using namespace lancet;
using namespace lancet::test;

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
