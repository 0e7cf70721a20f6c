// partition_spmd on models with the annotations of data, tensor, sequence and expert parallelism: what the ranks
// compute, and which collectives they have.
#include "good.h"
#include "passes/against_logical.h"
#include "passes/dense_gpt2.h"
#include "steps/models.h"
#include "steps/support.h"

using namespace lancet;
using namespace lancet::test;

namespace {

using ir::Axis;
using ir::Mesh;
using ir::Sharding;

}  // namespace

TEST_CASE("partition_spmd: a dense GPT-2 on meshes is the GPT-2 on one rank") {
  for (const Mesh& mesh : {mesh_with(1, 1, 1), mesh_with(2, 1, 1), mesh_with(1, 1, 2), mesh_with(2, 1, 2),
                           mesh_with(1, 1, 4), mesh_with(2, 2, 2)}) {
    const ir::Program logical = DenseGpt2().make(2, mesh);
    const ir::Program local = partitioned(logical, mesh);
    INFO(to_string(mesh) << "\n" << ir::print(logical) << ir::print(local));
    CHECK(difference(logical, local, mesh, random_values(logical, DenseGpt2::vocabulary, 7)) == "");
  }
}

TEST_CASE("partition_spmd: tensor parallelism has Megatron's collectives and no others") {
  const std::vector<std::string> expected = {
      "forward tensor h.0.attn.c_proj.sum_shards", "forward tensor h.0.mlp.c_proj.sum_shards",
      "forward tensor h.1.attn.c_proj.sum_shards", "forward tensor h.1.mlp.c_proj.sum_shards",
      "dx tensor h.1.mlp.c_fc.sum_shards",         "dx tensor h.1.attn.c_attn.sum_shards",
      "dx tensor h.0.mlp.c_fc.sum_shards",         "dx tensor h.0.attn.c_attn.sum_shards"};
  for (const Mesh& mesh : {mesh_with(1, 1, 2), mesh_with(1, 1, 4), mesh_with(2, 2, 2)})
    CHECK(collectives(partitioned(DenseGpt2().make(2, mesh), mesh), mesh) == expected);
  const Mesh data = mesh_with(4, 2, 1);
  CHECK(collectives(partitioned(DenseGpt2().make(2, data), data), data).empty());
}

TEST_CASE("partition_spmd: sequence parallelism gathers and scatters what tensor parallelism sums") {
  const Mesh mesh = mesh_with(1, 1, 2);
  const ir::Program logical = DenseGpt2().make(1, mesh, false, true);
  const ir::Program local = partitioned(logical, mesh);
  CHECK(difference(logical, local, mesh, random_values(logical, DenseGpt2::vocabulary, 11)) == "");
  const std::vector<std::string> forward = {
      "forward tensor h.0.ln_1.all_gather", "forward tensor h.0.attn.c_proj.reduce_scatter",
      "forward tensor h.0.ln_2.all_gather", "forward tensor h.0.mlp.c_proj.reduce_scatter"};
  // The backward pass gathers again what the products' weight gradients read.
  const std::vector<std::string> backward = {
      "dx tensor ln_f.all_gather",     "dw tensor h.0.ln_2.all_gather", "dx tensor h.0.mlp.c_fc.reduce_scatter",
      "dx tensor h.0.ln_2.all_gather", "dw tensor h.0.ln_1.all_gather", "dx tensor h.0.attn.c_attn.reduce_scatter"};
  std::vector<std::string> expected = forward;
  expected.insert(expected.end(), backward.begin(), backward.end());
  expected.push_back("dw tensor h.0.ln_1.swap_shards");  // the embedding's gradient has no row for the sequence
  CHECK(collectives(local, mesh) == expected);
}

TEST_CASE("partition_spmd: weights that are split over the batch's axes") {
  const Mesh mesh = mesh_with(2, 1, 2);
  const ir::Program logical = DenseGpt2().make(1, mesh, false, false, true);
  const ir::Program local = partitioned(logical, mesh);
  CHECK(difference(logical, local, mesh, random_values(logical, DenseGpt2::vocabulary, 11)) == "");
  CHECK(collectives(local, mesh) ==
        std::vector<std::string>{"forward data h.0.attn.c_attn.all_gather", "forward data h.0.attn.c_proj.all_gather",
                                 "forward data h.0.attn.c_proj.all_gather", "forward tensor h.0.attn.c_proj.sum_shards",
                                 "forward data h.0.mlp.c_fc.all_gather",    "forward data h.0.mlp.c_proj.all_gather",
                                 "forward data h.0.mlp.c_proj.all_gather",  "forward tensor h.0.mlp.c_proj.sum_shards",
                                 "dx data h.0.mlp.c_proj.all_gather",       "dw data h.0.mlp.c_proj.reduce_scatter",
                                 "dw data h.0.mlp.c_proj.reduce_scatter",   "dx data h.0.mlp.c_fc.all_gather",
                                 "dw data h.0.mlp.c_fc.reduce_scatter",     "dx tensor h.0.mlp.c_fc.sum_shards",
                                 "dx data h.0.attn.c_proj.all_gather",      "dw data h.0.attn.c_proj.reduce_scatter",
                                 "dw data h.0.attn.c_proj.reduce_scatter",  "dx data h.0.attn.c_attn.all_gather",
                                 "dw data h.0.attn.c_attn.reduce_scatter",  "dx tensor h.0.attn.c_attn.sum_shards"});
  for (const ir::Output& output : local.outputs)
    if (output.kind == ir::OutputKind::gradient)
      CHECK(local.type(output.tensor).shape == local.type(output.parameter).shape);
}

TEST_CASE("partition_spmd: a vocabulary that is split over tensor, some of it padding") {
  // Each message costs something, too. By bytes alone, 4 ranks would move the stats twice to split the loss by tokens.
  const auto cost = [](const passes::Reshard& step) {
    return passes::bytes_sent(step) + (is_local(step.kind) ? 0 : 1024);
  };
  for (const Mesh& mesh : {mesh_with(1, 1, 2), mesh_with(2, 1, 2), mesh_with(1, 1, 4), mesh_with(2, 2, 2)}) {
    // The last block of 4 has padding alone.
    const ir::Program logical = DenseGpt2().make(1, mesh, false, false, false, 4);
    const auto partitioned = test::good(passes::partition_spmd(logical, mesh, cost));
    const ir::Program& local = *partitioned;
    INFO(to_string(mesh) << "\n" << ir::print(logical) << ir::print(local));
    const Values values = random_values(logical, DenseGpt2::vocabulary, 13);
    CHECK(difference(logical, local, mesh, values) == "");
    CHECK(local.type(local.find("wte")).shape == Shape{16 / mesh[Axis::tensor], DenseGpt2::width});
    CHECK(collectives(local, mesh) ==
          std::vector<std::string>{"forward tensor wte.sum_shards", "forward tensor h.0.attn.c_proj.sum_shards",
                                   "forward tensor h.0.mlp.c_proj.sum_shards",
                                   "forward tensor lm_head.stats.all_gather", "dx tensor lm_head.sum_shards",
                                   "dx tensor h.0.mlp.c_fc.sum_shards", "dx tensor h.0.attn.c_attn.sum_shards"});
  }
}

TEST_CASE("partition_spmd: the loss of blocks of columns is that of whole rows") {
  const Mesh alone;
  const ir::Program rows = DenseGpt2().make(1, alone);
  const Values values = random_values(rows, DenseGpt2::vocabulary, 17);
  LockStep whole(rows, alone);
  for (const auto& [name, value] : values) whole.set(name, value, Sharding::whole(std::size_t(value.shape().rank())));
  whole.run();
  for (const std::int64_t blocks : {1, 2, 4, 16}) {
    const ir::Program by_blocks = DenseGpt2().make(1, alone, false, false, false, blocks);
    LockStep split(by_blocks, alone);
    for (const auto& [name, value] : values) split.set(name, value, Sharding::whole(std::size_t(value.shape().rank())));
    split.run();
    REQUIRE(by_blocks.outputs.size() == rows.outputs.size());
    for (const ir::Output& output : rows.outputs) {
      INFO(output.name << ", " << blocks << " blocks");
      const DoubleTensor& expected = whole.of(output.tensor)[0];
      const Sharding sharding = Sharding::whole(std::size_t(expected.shape().rank()));
      CHECK(wrong_elements(split.of(by_blocks.output(output.name)), expected, sharding, alone, 1e-9) == 0);
    }
  }
}

TEST_CASE("partition_spmd: mixtures of experts, whose gates have no rows for ranks, are right all the same") {
  for (const Mesh& mesh :
       {mesh_with(2, 1, 1), mesh_with(1, 2, 1), mesh_with(2, 1, 2), mesh_with(1, 1, 4), mesh_with(1, 2, 2)}) {
    ir::Program forward = model(1);
    for (ir::Tensor& tensor : forward.tensors)
      if (tensor.kind == ir::TensorKind::parameter && tensor.name.find(".experts.") == tensor.name.npos)
        tensor.sharding.reset();
    const auto logical = test::good(passes::shard(passes::autodiff(forward), mesh));
    const ir::Program local = partitioned(*logical, mesh);
    INFO(ir::print(*logical) << ir::print(local));
    CHECK(difference(*logical, local, mesh, random_values(*logical, 67, 3)) == "");
    const ir::TensorId experts = local.find("h.0.moe.experts.c_fc.weight");
    CHECK(local[experts].sharding.has_value() == (mesh[Axis::expert] * mesh[Axis::tensor] > 1));
    CHECK(local.type(experts).shape[0] == 4 / mesh[Axis::expert]);
  }
}

TEST_CASE("partition_spmd: the Program's size does not depend on the sizes of the mesh") {
  auto text = [](const Mesh& mesh) {
    std::string ops;
    for (const ir::Instruction& at : partitioned(DenseGpt2().make(2, mesh), mesh).instructions)
      ops += fmt::format("{} {}\n", at.op, at.label);
    return ops;
  };
  CHECK(text(mesh_with(2, 1, 2)) == text(mesh_with(4, 1, 4)));
  CHECK(text(mesh_with(2, 2, 2)) == text(mesh_with(4, 2, 4)));
}

TEST_CASE("partition_spmd: gradients that are summed in states") {
  for (const Mesh& mesh : {mesh_with(2, 1, 2), mesh_with(2, 2, 2), mesh_with(1, 1, 2)})
    for (const bool sequence_parallel : {false, true}) {
      const ir::Program logical = DenseGpt2().make(1, mesh, true, sequence_parallel);
      const ir::Program local = partitioned(logical, mesh);
      INFO(to_string(mesh) << "\n" << ir::print(logical) << ir::print(local));
      CHECK(difference(logical, local, mesh, random_values(logical, DenseGpt2::vocabulary, 9)) == "");
      for (const ir::Output& output : local.outputs)
        if (output.kind == ir::OutputKind::gradient)
          CHECK(local[local.root(output.tensor)].kind == ir::TensorKind::state);
    }
}

TEST_CASE("partition_spmd: weights that are split over the batch's axes, between a split sequence, and not in states") {
  const Mesh mesh = mesh_with(2, 1, 2);
  const ir::Program logical = DenseGpt2().make(1, mesh, false, true, true);
  CHECK(difference(logical, partitioned(logical, mesh), mesh, random_values(logical, DenseGpt2::vocabulary, 9)) == "");
  for (const bool sequence_parallel : {false, true}) {
    const Error result =
        test::refused(passes::partition_spmd(DenseGpt2().make(1, mesh, true, sequence_parallel, true), mesh));
    CHECK(result.message.find("expected the sum of its gradients split like the parameter") != std::string::npos);
  }
}
