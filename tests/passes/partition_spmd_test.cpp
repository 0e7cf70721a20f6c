// The Program that partition_spmd makes: its text, states that are updated in place, which versions of a tensor it has,
// what ranks hold parts of, and errors.

#include "passes/against_logical.h"
#include "passes/dense_gpt2.h"
#include "passes/random_program.h"
#include "steps/support.h"

namespace lancet {

using namespace test;

namespace {

using ir::Axes;
using ir::Axis;
using ir::Mesh;

}  // namespace

TEST_CASE("partition_spmd: text in, text out") {
  const ir::Program logical = program(R"(program pair
input @x : f32[4{data},8]
parameter @w : f32[16{tensor},8]
parameter @v : f32[8,16{tensor}]
parameter @b : f32[8] whole
%0 : f32[4{data},16{tensor}] = linear(@x, @w)  # compute forward a
%1 : f32[4{data},16{tensor}] = gelu(%0)  # compute forward a.gelu
%2 : f32[4{data},8] partial{tensor} = linear(%1, @v, @b)  # compute forward b
%3 : f32[4{data},8] = add(%2, @x)  # compute forward c
%4 : f32[4{data},8] = add(%3, %2)  # compute forward d
output y = %4
)");
  CHECK(text_of(partitioned(logical, mesh_with(2, 1, 4))) == R"(program pair
input @x : f32[2,8]
parameter @w : f32[4{tensor},8]
parameter @v : f32[8,4{tensor}]
parameter @b : f32[8]
%0 : f32[2,4] = linear(@x, @w)  # compute forward a
%1 : f32[2,4] = gelu(%0)  # compute forward a.gelu
%2 : f32[8] = one_summand(@b) {axes=tensor}  # compute forward b.one_summand
%3 : f32[2,8] = linear(%1, @v, %2)  # compute forward b
%4 : f32[2,8] = sum_shards(%3) {axes=tensor, shards=4}  # expert forward b.sum_shards
%5 : f32[2,8] = add(%4, @x)  # compute forward c
%6 : f32[2,8] = add(%5, %4)  # compute forward d
output y = %6
)");
}

TEST_CASE("partition_spmd: on one rank the Program stays, without its shardings") {
  const ir::Program logical = DenseGpt2().make(2, mesh_with(1, 1, 1));
  ir::Program plain = logical;
  for (ir::Tensor& tensor : plain.tensors) tensor.sharding.reset();
  CHECK(text_of(partitioned(logical, mesh_with(1, 1, 1))) == ir::print(plain));
}

TEST_CASE("partition_spmd: after an update in place no reader sees a copy from before it") {
  const char* states = R"(program states
state @s : f32[8,4] whole
state @g : f32[8,4] partial{data}
input @x : f32[8{data},4]
input @dy : f32[8{data},8]
%0 : f32[8{data},4] = gelu(@s)  # compute forward a
%1 : f32[8,4] whole = gelu(@g)  # compute forward b
zero(&@s)  # compute forward c
%2 : f32[8{data},4] = gelu(@s)  # compute forward d
%3 : f32[8,4] partial{data} in @g = linear_dw(@dy, @x, @g)  # compute dw e
%4 : f32[8,4] whole = gelu(@g)  # compute forward f
%5 : f32[8,4] whole = gelu(%3)  # compute forward g
output before = %0
output sum_before = %1
output after = %2
output sum_after = %4
output sum = %5
)";
  const ir::Program logical = program(states), local = partitioned(logical, mesh_with(2, 1, 1));
  INFO(ir::print(local));
  CHECK(difference(logical, local, mesh_with(2, 1, 1), random_values(logical, 2, 3)) == "");
}

TEST_CASE("partition_spmd: a state is updated in its own memory only") {
  auto error = [](const char* first, const ir::Mesh& mesh = mesh_with(2, 1, 1)) {
    const std::string text = fmt::format(
        "state @s : f32[8{{data}},4]\n{}zero(&@s)  # compute forward b\n%9 : f32[8{{data}},4] = gelu(@s)  # compute "
        "forward c\noutput y = %9\n",
        first);
    const auto result = passes::partition_spmd(program(text), mesh);
    return result.ok() ? "none" : result.error().message;
  };
  const char* expected =
      "b: expected a way to split zero over data that leaves what it updates in place as it is sharded, found none";
  CHECK(error("") == expected);
  // A whole copy is at hand.
  CHECK(error("%0 : f32[1] whole = squared_norm(@s)  # compute forward a\n") == expected);
}

TEST_CASE("partition_spmd: only versions that something reads are made, each once, from the nearest one") {
  CHECK(text_of(partitioned(program(R"(program unread
input @x : f32[8{data},4]
%0 : f32[8,4] whole = gelu(@x)  # compute forward a
%1 : f32[8{data},4] = gelu(%0)  # compute forward b
output y = %1
)"),
                            mesh_with(2, 1, 1))) == R"(program unread
input @x : f32[4,4]
%0 : f32[4,4] = gelu(@x)  # compute forward a
%1 : f32[4,4] = gelu(%0)  # compute forward b
output y = %1
)");
  CHECK(text_of(partitioned(program(R"(program nearest
input @x : f32[8,4] whole
%0 : f32[8{data},4] = gelu(@x)  # compute forward a
%1 : f32[8{data},4{tensor}] = gelu(@x)  # compute forward b
%2 : f32[8{data},4{tensor}] = gelu(@x)  # compute forward c
output y = %0
output z = %1
output w = %2
)"),
                            mesh_with(2, 1, 2))) == R"(program nearest
input @x : f32[8,4]
%0 : f32[4,4] = take_shard(@x) {axes=data, shards=2, axis=0}  # compute forward a.take_shard
%1 : f32[4,4] = gelu(%0)  # compute forward a
%2 : f32[4,2] = take_shard(%0) {axes=tensor, shards=2, axis=1}  # compute forward b.take_shard
%3 : f32[4,2] = gelu(%2)  # compute forward b
%4 : f32[4,2] = gelu(%2)  # compute forward c
output y = %1
output z = %3
output w = %4
)");
}

TEST_CASE("partition_spmd: an output that no instruction makes leaves as it is sharded") {
  const ir::Program logical = program("program named\nparameter @x : f32[8{data},4]\noutput y = @x\n");
  CHECK(text_of(partitioned(logical, mesh_with(2, 1, 1))) ==
        "program named\nparameter @x : f32[4{data},4]\noutput y = @x\n");
}

TEST_CASE("partition_spmd: parameters that ranks hold parts of say how they are split") {
  const Mesh mesh = mesh_with(2, 1, 2);
  const ir::Program local = partitioned(DenseGpt2().make(1, mesh), mesh);
  const auto split = [&](const char* name) {
    const ir::Tensor& tensor = local[local.find(name)];
    return tensor.sharding ? to_string(tensor.type.shape, *tensor.sharding) : "none";
  };
  CHECK(split("h.0.attn.c_attn.weight") == "3x8{tensor},16");
  CHECK(local.type(local.find("h.0.attn.c_attn.weight")).shape == Shape{24, 16});
  CHECK(split("h.0.attn.c_attn.bias") == "3x8{tensor}");
  CHECK(split("h.0.attn.c_proj.bias") == "none");
  CHECK(split("wte") == "none");
  CHECK(split("tokens") == "none");
  CHECK(local.type(local.find("tokens")).shape == Shape{4, 4});
  CHECK(local[local.output("grad.wte")].sharding->partial == Axes{Axis::data});
  CHECK(local[local.output("loss")].sharding->partial == Axes{Axis::data});
}

TEST_CASE("partition_spmd: errors name the tensor, the axis and the numbers") {
  auto error = [](const char* text, const Mesh& mesh) {
    const auto result = passes::partition_spmd(program(text), mesh);
    return result.ok() ? "none" : result.error().message;
  };
  CHECK(error("input @x : f32[6{data},8]\n%0 : f32[6{data},8] = gelu(@x)  # compute forward a\noutput y = %0\n",
              mesh_with(4, 1, 1)) == "@x: dimension 0: expected a multiple of 4, the ranks along data, found 6");
  CHECK(error("input @t : i32[4,6] partial{data}\ninput @x : f32[8,8] whole\n%0 : f32[8,8] whole = gelu(@x)  # compute "
              "forward a\noutput y = %0\n",
              mesh_with(2, 1, 1)) == "@t: expected a tensor of f32 or bf16 where it is partial over data, found i32");
  CHECK(error("state @x : f32[8{stage},8]\n%0 : f32[8{stage},8] = gelu(@x)  # compute forward a\noutput y = %0\n",
              ir::Mesh{{2, 1, 1, 1}}) == "@x: expected a sharding over data, expert or tensor, found one over stage");
  // No row of layer_norm_dw splits the features, and a state cannot be gathered for its update.
  CHECK(error(R"(input @dy : f32[1,4,8] whole
input @x : f32[1,4,8] whole
input @stats : f32[1,4,2] whole
state @gamma.grad : f32[8{data}]
state @beta.grad : f32[8{data}]
%0 : f32[8{data}] in @gamma.grad, %1 : f32[8{data}] in @beta.grad = layer_norm_dw(@dy, @x, @stats, @gamma.grad, @beta.grad)  # compute dw ln
output gamma = %0
)",
              mesh_with(4, 1, 1)) ==
        "ln: expected a way to split layer_norm_dw over data that leaves what it updates in place as it is sharded, "
        "found none");
}

// partition_spmd against the logical Program: every row of the op table, and random Programs with random shardings.

namespace {

using ir::Sharding;

Sharding row_sharding(ops::Axis entry, const ir::Blocks& packed, int rank, Axis axis) {
  Sharding sharding = Sharding::whole(std::size_t(rank));
  if (entry == ops::partial || entry == ops::accumulated) sharding.partial.add(axis);
  if (!ops::is_split(entry)) return sharding;
  sharding.dimensions[std::size_t(ops::index_of(entry, rank))] = {{axis}, entry == ops::packed ? packed : 1};
  return sharding;
}

// A Program of one instruction, sharded as a row says.
ir::Program program_of(const ops::OpDef& op, const ops::Sample& sample, const ops::PartitionRow& row, Axis axis) {
  ir::Program program;
  const ir::Blocks packed = ops::blocks_of(row, ops::packed, sample.attributes);
  std::vector<ir::TensorId> operands;
  for (std::size_t i = 0; i < sample.operands.size(); ++i) {
    const ir::TensorType& type = sample.operands[i].type;
    operands.push_back(program.add_named(ir::TensorKind::parameter, fmt::format("x{}", i), type));
    program[operands[i]].sharding = row_sharding(row.operands[i], packed, type.shape.rank(), axis);
  }
  const auto results = ops::append(program, op.name, operands, sample.attributes, ir::Role::forward, "row");
  for (std::size_t r = 0; r < results.size(); ++r) {
    program[results[r]].sharding = row_sharding(row.results[r], packed, program.type(results[r]).shape.rank(), axis);
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

}  // namespace lancet
