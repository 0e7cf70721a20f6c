// make_mesh() first takes the sizes that the config gives. What is left of the ranks goes to `expert`, as far as the
// experts can be split, and then to `data`.
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "fields.h"
#include "lancet/base/check.h"

namespace lancet::config {
namespace {

using ir::Axis;

// Every stage, or chunk of one, has a block but the last, which has the head.
Status check_stage_blocks(const Config& config, std::int64_t chunks) {
  const std::vector<std::int64_t>& blocks = config.mesh.stage_blocks;
  const std::int64_t all = std::accumulate(blocks.begin(), blocks.end(), std::int64_t{0});
  const bool filled = std::ranges::count(blocks, 0) == (blocks.back() > 0 ? 0 : 1);
  if (std::ssize(blocks) == chunks && all == config.model.n_layer && filled) return {};
  return refused(
      "mesh.stage_blocks: expected {} number{} for mesh.stage = {}, whose sum is model.n_layer = "
      "{}, none of them 0 but the last, found [{}]",
      chunks, chunks == 1 ? "" : "s", config.mesh.stage, config.model.n_layer, fmt::join(blocks, ", "));
}

// Steps ask for their mesh, so this allocates nothing where all is well.
Status check_stage(const Config& config) {
  const std::int64_t stages = config.mesh.stage, chunks = stages * chunks_of_stage(config);
  if (!config.mesh.stage_blocks.empty()) return check_stage_blocks(config, chunks);
  if (chunks <= config.model.n_layer) return {};
  if (chunks > stages)
    return refused(
        "train.pipeline_schedule: expected at least {} blocks of the model (model.n_layer) for "
        "\"interleaved\" on {} stages, found {}",
        chunks, stages, config.model.n_layer);
  return refused("mesh.stage: expected at most {}, the number of blocks of the model (model.n_layer), found {}",
                 config.model.n_layer, stages);
}

// What Program tensors the axis splits, their extents, and whether the config has them. Steps ask for their mesh, so
// this allocates nothing.
Status check_tensor(const Config& config) {
  const Model& model = config.model;
  const std::int64_t tensor = config.mesh.tensor;
  struct Dimension {
    const char *what, *tensors;
    std::int64_t extent;
    bool there;
  };
  const bool own_width = model.has_moe() && model.moe_intermediate_size;
  const Dimension split[] = {
      {"heads (model.n_head)", "h.*.attn.c_attn", model.n_head, !model.num_key_value_heads},
      {"key heads (model.num_key_value_heads)", "h.*.attn.c_attn", model.key_heads(), true},
      {"features (model.n_inner)", own_width ? "h.*.mlp.c_fc" : "h.*.mlp.c_fc and h.*.moe.experts.c_fc", model.inner(),
       model.has_dense_ffn() || !own_width},
      {"features (model.moe_intermediate_size)", "h.*.moe.experts.c_fc", model.expert_inner(), own_width},
      {"features (model.shared_expert_intermediate_size)", "h.*.moe.shared_experts.c_fc", model.shared_inner(),
       model.has_moe() && model.family().gates_shared_expert}};
  for (const Dimension& dimension : split)
    if (dimension.there && dimension.extent % tensor != 0)
      return refused("mesh.tensor: expected a divisor of the {} {} of {}, found {}", dimension.extent, dimension.what,
                     dimension.tensors, tensor);
  if (const Train& train = config.train; train.sequence_parallel && train.seq_len % tensor != 0)
    return refused("train.seq_len: expected a multiple of mesh.tensor = {} with train.sequence_parallel, found {}",
                   tensor, train.seq_len);
  return {};
}

std::string size_text(const std::optional<std::int64_t>& size) { return size ? std::to_string(*size) : "null"; }

Error wrong_product(const MeshSizes& sizes, int ranks) {
  return refused("mesh: expected axes whose product is the {} ranks, found data {}, expert {}, tensor {}, stage {}",
                 ranks, size_text(sizes.data), size_text(sizes.expert), sizes.tensor, sizes.stage);
}

// The largest size of `expert` that fits a layer's experts and divides `ranks`.
std::int64_t widest_expert(const Model& model, std::int64_t ranks) {
  if (!model.has_moe()) return 1;
  return model.num_local_experts ? std::gcd(*model.num_local_experts, ranks) : ranks;
}

Status check_expert(const Config& config, std::int64_t expert) {
  const Model& model = config.model;
  if (!model.has_moe() && expert != 1)
    return refused("mesh.expert: expected 1 for a dense model (model.moe_layer_freq = 0), found {}", expert);
  if (model.num_local_experts && *model.num_local_experts % expert != 0)
    return refused(
        "mesh.expert: expected a divisor of the {} experts (model.num_local_experts) of the tensors "
        "h.*.moe.experts, found {}",
        *model.num_local_experts, expert);
  return {};
}

// make_mesh(), with errors in GPT-2's names of fields.
Result<ir::Mesh> mesh_in(const Config& config, int ranks) {
  const MeshSizes& sizes = config.mesh;
  LANCET_TRY(check_stage(config));
  LANCET_TRY(check_tensor(config));
  const std::int64_t given = sizes.data.value_or(1) * sizes.expert.value_or(1) * sizes.tensor * sizes.stage;
  if (ranks % given != 0) return wrong_product(sizes, ranks);
  std::int64_t rest = ranks / given;
  std::int64_t expert = 1, data = 1;
  if (sizes.expert) {
    expert = *sizes.expert;
  } else {
    expert = sizes.data && config.model.has_moe() ? rest : widest_expert(config.model, rest);
    rest /= expert;
  }
  if (sizes.data) {
    data = *sizes.data;
  } else {
    data = rest;
    rest = 1;
  }
  if (rest != 1) return wrong_product(sizes, ranks);
  LANCET_TRY(check_expert(config, expert));
  ir::Mesh mesh;
  mesh[Axis::stage] = int(sizes.stage);
  mesh[Axis::data] = int(data);
  mesh[Axis::expert] = int(expert);
  mesh[Axis::tensor] = int(sizes.tensor);
  return mesh;
}

}  // namespace

Result<ir::Mesh> make_mesh(const Config& config, int ranks) {
  auto mesh = mesh_in(config, ranks);
  if (!mesh.ok()) return in_names_of(config.model.family(), std::move(mesh).error());
  return mesh;
}

ir::Mesh mesh_of(const Config& config, int ranks) {
  const auto mesh = make_mesh(config, ranks);
  LANCET_CHECK(mesh.ok(), "{}", mesh.error().message);
  return *mesh;
}

}  // namespace lancet::config
