// What the ranks of a mesh send in a training step of the model: every collective of a layer, by name, and no others.
#include "lancet/model/transformer.h"
#include "passes/partitioned.h"
#include "small_model.h"

using namespace lancet;
using namespace lancet::test;

namespace {

using Lines = std::vector<std::string>;

// A rank's step of two layers, the first of which has experts.
ir::Program step_of_rank(const ir::Mesh& mesh, bool sequence_parallel) {
  config::Model model = small_model();
  model.n_layer = 2;
  model.n_head = 4;
  const std::int64_t batch = 4;
  const auto logical =
      passes::shard(passes::autodiff(model::build_forward(model, {.batch = batch,
                                                                  .sequence = 8,
                                                                  .groups = batch,
                                                                  .loads = mesh.size(ir::batch_axes),
                                                                  .tensor_ranks = mesh[ir::Axis::tensor],
                                                                  .sequence_parallel = sequence_parallel})),
                    mesh);
  if (!logical.ok()) FAIL(logical.error().message);
  return partitioned(*logical, mesh);
}

// The collectives of a layer, "h.0", or with "" those outside the layers.
Lines of_layer(const ir::Program& program, const ir::Mesh& mesh, const std::string& layer) {
  Lines found;
  for (const std::string& line : collectives(program, mesh)) {
    const std::size_t at = line.find(" h.");
    const std::string of = at == line.npos ? "" : line.substr(at + 1, line.find('.', at + 3) - at - 1);
    if (of == layer) found.push_back(line);
  }
  return found;
}

// The slices that a rank takes of what it has whole.
Lines slices(const ir::Program& program) {
  Lines found;
  for (const ir::Instruction& at : program.instructions)
    if (at.op == "take_shard") found.push_back(fmt::format("{} {}", name(at.role), at.label));
  return found;
}

const ir::Mesh tensor_alone = mesh_with(1, 1, 2), experts_too = mesh_with(1, 2, 2);

}  // namespace

TEST_CASE("a dense layer of the model sends what Megatron-LM's sends") {
  for (const ir::Mesh& mesh : {tensor_alone, experts_too, mesh_with(2, 2, 2)}) {
    INFO(to_string(mesh));
    const Lines two_each_way = {"forward tensor h.1.attn.c_proj.sum_shards", "forward tensor h.1.mlp.c_proj.sum_shards",
                                "dx tensor h.1.mlp.c_fc.sum_shards", "dx tensor h.1.attn.c_attn.sum_shards"};
    CHECK(of_layer(step_of_rank(mesh, false), mesh, "h.1") == two_each_way);
    // The backward pass gathers again what the weights' gradients read.
    const Lines gathers_and_scatters = {"forward tensor h.1.ln_1.all_gather",
                                        "forward tensor h.1.attn.c_proj.reduce_scatter",
                                        "forward tensor h.1.ln_2.all_gather",
                                        "forward tensor h.1.mlp.c_proj.reduce_scatter",
                                        "dw tensor h.1.ln_2.all_gather",
                                        "dx tensor h.1.mlp.c_fc.reduce_scatter",
                                        "dx tensor h.1.ln_2.all_gather",
                                        "dw tensor h.1.ln_1.all_gather",
                                        "dx tensor h.1.attn.c_attn.reduce_scatter",
                                        "dx tensor h.1.ln_1.all_gather"};
    CHECK(of_layer(step_of_rank(mesh, true), mesh, "h.1") == gathers_and_scatters);
  }
}

TEST_CASE("a layer of experts that tensor splits sends two sums each way, and one number a token") {
  const ir::Program step = step_of_rank(tensor_alone, false);
  CHECK(of_layer(step, tensor_alone, "h.0") ==
        Lines{"forward tensor h.0.attn.c_proj.sum_shards", "forward tensor h.0.moe.combine.sum_shards",
              "dx tensor h.0.moe.combine.sum_shards", "dx tensor h.0.moe.dispatch.sum_shards",
              "dx tensor h.0.attn.c_attn.sum_shards"});
  // The gradient of the gate's weight is the product of two rows whose features are partial sums.
  for (const ir::Instruction& at : step.instructions)
    if (at.role == ir::Role::dx && at.label == "h.0.moe.combine.sum_shards")
      CHECK(step.type(at.results[0]).shape == Shape{32, 1});
  CHECK(slices(step) == Lines{"forward lm_head.loss.take_shard"});
}

TEST_CASE("a layer of experts between norms whose sequences tensor splits gathers the router's logits, too") {
  const ir::Program step = step_of_rank(tensor_alone, true);
  CHECK(of_layer(step, tensor_alone, "h.0") ==
        Lines{"forward tensor h.0.ln_1.all_gather", "forward tensor h.0.attn.c_proj.reduce_scatter",
              "forward tensor h.0.moe.gate.all_gather", "forward tensor h.0.ln_2.all_gather",
              "forward tensor h.0.moe.combine.reduce_scatter", "dx tensor h.0.moe.combine.sum_shards",
              "dx tensor h.0.moe.dispatch.reduce_scatter", "dx tensor h.0.ln_2.all_gather",
              "dw tensor h.0.ln_1.all_gather", "dx tensor h.0.attn.c_attn.reduce_scatter",
              "dw tensor h.0.ln_1.all_gather"});
  CHECK(slices(step) == Lines{"forward lm_head.loss.take_shard", "dx h.0.moe.gate.take_shard"});
}

TEST_CASE("a layer of experts over expert and tensor adds the all-to-alls to what tensor sends") {
  CHECK(of_layer(step_of_rank(experts_too, false), experts_too, "h.0") ==
        Lines{"forward tensor h.0.attn.c_proj.sum_shards", "forward expert h.0.moe.gate.all_to_all_counts",
              "forward expert h.0.moe.dispatch.all_to_all", "forward expert h.0.moe.experts.c_proj.all_to_all_back",
              "forward tensor h.0.moe.combine.sum_shards", "dx expert h.0.moe.experts.c_proj.all_to_all_back",
              "dx expert h.0.moe.dispatch.all_to_all", "dx tensor h.0.moe.combine.sum_shards",
              "dx tensor h.0.moe.dispatch.sum_shards", "dx tensor h.0.attn.c_attn.sum_shards"});
  CHECK(of_layer(step_of_rank(experts_too, true), experts_too, "h.0") ==
        Lines{"forward tensor h.0.ln_1.all_gather", "forward tensor h.0.attn.c_proj.reduce_scatter",
              "forward tensor h.0.moe.gate.all_gather", "forward expert h.0.moe.gate.all_to_all_counts",
              "forward tensor h.0.ln_2.all_gather", "forward expert h.0.moe.dispatch.all_to_all",
              "forward expert h.0.moe.experts.c_proj.all_to_all_back", "forward tensor h.0.moe.combine.reduce_scatter",
              "dx expert h.0.moe.experts.c_proj.all_to_all_back", "dx expert h.0.moe.dispatch.all_to_all",
              "dx tensor h.0.moe.combine.sum_shards", "dx tensor h.0.moe.dispatch.reduce_scatter",
              "dx tensor h.0.ln_2.all_gather", "dw tensor h.0.ln_1.all_gather",
              "dx tensor h.0.attn.c_attn.reduce_scatter", "dw tensor h.0.ln_1.all_gather"});
}

TEST_CASE("outside the layers tensor sends the embedding, two numbers a token and block, and the head's gradient") {
  CHECK(of_layer(step_of_rank(tensor_alone, false), tensor_alone, "") ==
        Lines{"forward tensor wte.sum_shards", "forward tensor lm_head.stats.all_gather",
              "dx tensor lm_head.sum_shards"});
  CHECK(of_layer(step_of_rank(tensor_alone, true), tensor_alone, "") ==
        Lines{"forward tensor wte.reduce_scatter", "forward tensor ln_f.all_gather",
              "forward tensor lm_head.stats.all_gather", "dw tensor ln_f.all_gather",
              "dx tensor lm_head.reduce_scatter", "dx tensor ln_f.all_gather"});
}
