// partition_spmd against the logical Program: every row of the op table, and random Programs with random shardings.
#include "passes/against_logical.h"
#include "passes/dense_gpt2.h"
#include "passes/random_program.h"
#include "steps/support.h"

using namespace lancet;
using namespace lancet::test;

namespace {

using ir::Axis;
using ir::Mesh;
using ir::Sharding;

Sharding row_sharding(ops::Axis entry, int rank, Axis axis) {
  Sharding sharding = Sharding::whole(std::size_t(rank));
  if (entry == ops::partial || entry == ops::accumulated) sharding.partial.add(axis);
  if (!ops::is_split(entry)) return sharding;
  sharding.dimensions[std::size_t(ops::index_of(entry, rank))] = {{axis}, ops::blocks_of(entry)};
  return sharding;
}

// A Program of one instruction, sharded as a row says.
ir::Program program_of(const ops::OpDef& op, const ops::Sample& sample, const ops::PartitionRow& row, Axis axis) {
  ir::Program program;
  std::vector<ir::TensorId> operands;
  for (std::size_t i = 0; i < sample.operands.size(); ++i) {
    const ir::TensorType& type = sample.operands[i].type;
    operands.push_back(program.add_named(ir::TensorKind::parameter, fmt::format("x{}", i), type));
    program[operands[i]].sharding = row_sharding(row.operands[i], type.shape.rank(), axis);
  }
  const auto results = ops::append(program, op.name, operands, sample.attributes, ir::Role::forward, "row");
  for (std::size_t r = 0; r < results.size(); ++r) {
    program[results[r]].sharding = row_sharding(row.results[r], program.type(results[r]).shape.rank(), axis);
    program.add_output(fmt::format("y{}", r), results[r]);
  }
  return program;
}

// Compares each row that fits the sample, on n ranks along an axis, and counts it in `checked`, by row.
void check_rows(const ops::OpDef& op, const ops::Sample& sample, Axis axis, int n, std::vector<int>& checked) {
  Mesh mesh;
  mesh[axis] = n;
  for (std::size_t r = 0; r < op.partition.size(); ++r) {
    const ops::PartitionRow& row = op.partition[r];
    if (!row.in_space() || sample.operands.size() > row.operands.size()) continue;
    if (splits_slots(row, op)) continue;  // shards of slots are no slices: tests/ops/partition_test.cpp
    const ir::Program logical = program_of(op, sample, row, axis);
    if (!ops::has_shares(logical, logical.instructions[0], row, n)) continue;
    Values values;
    const SampleRoute route(sample, 5);
    const auto operands = make_operands(sample, route, 5);
    for (std::size_t i = 0; i < operands.size(); ++i) values[fmt::format("x{}", i)] = to_double(operands[i]);
    const ir::Program local = partitioned(logical, mesh);
    INFO(ir::print(logical) << ir::print(local));
    CHECK(difference(logical, local, mesh, values) == "");
    for (const ir::Instruction& at : local.instructions) CHECK((at.op == op.name || at.op == "one_summand"));
    ++checked[r];
  }
}

// Every other value whose memory nothing overwrites is an output, too.
void output_all(ir::Program& program) {
  std::vector<bool> overwritten(program.tensors.size());
  for (const ir::Output& output : program.outputs) overwritten[output.tensor.index()] = true;
  for (const ir::Tensor& tensor : program.tensors)
    if (tensor.storage.valid()) overwritten[tensor.storage.index()] = true;
  for (std::size_t i = 0; i < program.tensors.size(); ++i)
    if (program.tensors[i].number >= 0 && !overwritten[i])
      program.add_output(fmt::format("value.{}", i), {std::int32_t(i)});
}

}  // namespace

TEST_CASE("partition_spmd: every row of the table, by the row's shardings and without communication") {
  for (const ops::OpDef* op : ops::all_ops()) {
    std::vector<int> checked(op->partition.size());
    for (const ops::Sample& sample : op->samples)
      for (const int n : {2, 4}) {
        INFO(op->name);
        check_rows(*op, sample, n == 2 ? Axis::tensor : Axis::data, n, checked);
      }
    for (std::size_t r = 0; r < checked.size(); ++r) {
      INFO("row " << r << " of " << op->name << " fits no sample");
      CHECK((checked[r] > 0 || !op->partition[r].in_space() || splits_slots(op->partition[r], *op)));
    }
  }
}

TEST_CASE("partition_spmd: random steps with random shardings of all tensors") {
  const Mesh meshes[] = {mesh_with(1, 1, 2), mesh_with(2, 1, 1), mesh_with(2, 1, 2), mesh_with(1, 4, 1),
                         mesh_with(1, 2, 2), mesh_with(2, 2, 2), mesh_with(4, 1, 2)};
  for (std::uint32_t seed = 1; seed <= 200; ++seed) {
    RandomProgram random(seed);
    ir::Program logical = random.make();
    output_all(logical);
    const Mesh& mesh = meshes[seed % std::size(meshes)];
    random.shard(logical, mesh);
    const ir::Program local = partitioned(logical, mesh);
    INFO("seed " << seed << " on " << to_string(mesh) << "\n" << ir::print(logical) << ir::print(local));
    REQUIRE(difference(logical, local, mesh, random_values(logical, 16, seed)) == "");
  }
}

TEST_CASE("partition_spmd: random steps with random annotations of some tensors, which shard spreads") {
  const Mesh meshes[] = {mesh_with(2, 1, 2), mesh_with(1, 4, 1), mesh_with(2, 2, 2)};
  int compared = 0;
  for (std::uint32_t seed = 1; seed <= 60; ++seed) {
    RandomProgram random(seed);
    ir::Program annotated = random.make();
    const Mesh& mesh = meshes[seed % std::size(meshes)];
    random.shard(annotated, mesh);
    std::minstd_rand kept(seed);
    for (ir::Tensor& tensor : annotated.tensors)
      if (kept() % 4 != 0) tensor.sharding.reset();
    const auto logical = passes::shard(annotated, mesh);
    if (!logical.ok()) {  // heads of attention
      REQUIRE(logical.error().message.find("heads, since") != std::string::npos);
      continue;
    }
    const ir::Program local = partitioned(*logical, mesh);
    INFO("seed " << seed << " on " << to_string(mesh) << "\n" << ir::print(*logical) << ir::print(local));
    REQUIRE(difference(*logical, local, mesh, random_values(*logical, 16, seed)) == "");
    ++compared;
  }
  CHECK(compared > 40);
}

TEST_CASE("partition_spmd: the comparison notices planted faults") {
  const Mesh mesh = mesh_with(2, 1, 2);
  const ir::Program logical = DenseGpt2().make(1, mesh);
  const Values values = random_values(logical, DenseGpt2::vocabulary, 7);
  for (const char* planted : {"sum_shards", "one_summand"}) {  // each taken for the other
    ir::Program local = partitioned(logical, mesh);
    const auto at = std::ranges::find(local.instructions, planted, &ir::Instruction::op);
    REQUIRE(at != local.instructions.end());
    at->op = at->op == "sum_shards" ? "one_summand" : "sum_shards";
    CHECK(difference(logical, local, mesh, values) != "");
  }
  ir::Program local = partitioned(logical, mesh);  // a sum over another axis of as many ranks
  std::ranges::find(local.instructions, "sum_shards", &ir::Instruction::op)->attributes.set("axes", "data");
  CHECK(difference(logical, local, mesh, values) != "");
}

TEST_CASE("partition_spmd: the comparison notices sums that are left out and blocks that are taken for one") {
  const Mesh mesh = mesh_with(1, 1, 2);
  const ir::Program step = DenseGpt2().make(1, mesh, false, true);
  ir::Program local = partitioned(step, mesh);
  for (ir::Instruction& at : local.instructions) {  // each rank keeps its shard of its own summand
    if (at.op != "reduce_scatter") continue;
    at.op = "take_shard";
    break;
  }
  CHECK(difference(step, local, mesh, random_values(step, DenseGpt2::vocabulary, 7)) != "");
  const ir::Program blocks = program(
      "parameter @w : f32[3x4{tensor}]\n%0 : f32[12] whole = gelu(@w)  # compute forward a\n"
      "%1 : f32[12{tensor}] = gelu(@w)  # compute forward b\noutput y = %0\noutput z = %1\n");
  local = partitioned(blocks, mesh);
  CHECK(difference(blocks, local, mesh, random_values(blocks, 2, 7)) == "");
  const auto gather = std::ranges::find(local.instructions, "all_gather", &ir::Instruction::op);
  REQUIRE(gather != local.instructions.end());
  gather->attributes.set("blocks", std::int64_t(1));
  CHECK(difference(blocks, local, mesh, random_values(blocks, 2, 7)) != "");
}
