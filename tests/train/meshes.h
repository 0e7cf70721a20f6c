// Training on meshes of ranks that are threads, and the same steps on one rank.
#pragma once
#include <atomic>
#include <catch2/catch.hpp>
#include <cstddef>
#include <fstream>
#include <string>
#include <vector>

#include "lancet/ir/mesh.h"
#include "train/support.h"

namespace lancet::test {

using Records = std::vector<run::StepRecord>;

constexpr int step_rows = 8;

// A step of 8 sequences that are split over any number of ranks, capacity counted in pairs of them; four experts and
// four heads; drops, and gradients that are clipped.
inline config::Config mesh_config(int batch_ranks) {
  config::Config config = small_config();
  config.model.n_head = 4;
  config.model.experts_per_rank.reset();
  config.model.num_local_experts = 4;
  config.model.capacity_factor = 0.75;
  config.model.router_group_size = 2;
  config.model.router_aux_loss_coef = 0.02;
  config.model.router_aux_loss_scope = config::AuxLossScope::global;
  config.train.micro_batch_size = step_rows / batch_ranks;
  config.train.steps = 6;
  config.train.weight_decay = 0.1;
  config.train.save_buffer_mb = 8;
  return config;
}

// Two narrow experts a token besides two shared ones, in all blocks but the first.
inline void set_shared(config::Model& model) {
  model.router = config::Router::top_k;
  model.num_experts_per_tok = 2;
  model.norm_topk_prob = true;
  model.moe_layer_freq = 1;
  model.first_k_dense_replace = 1;
  model.moe_intermediate_size = 24;
  model.n_shared_experts = 2;
}

// The small model with the blocks of a family with rotary positions, and what its fields allow beside them.
inline void set_family(config::Model& model, std::string_view name) {
  const config::Family& family = *config::find_family(name);
  const config::Model defaults = config::defaults_of(family);
  model.model_type = &family;
  model.num_key_value_heads = 2;
  model.head_dim = 6;
  model.rope_theta = 100;
  model.router = defaults.router;
  model.tie_word_embeddings = !family.has("num_experts_per_tok");
  if (!family.has("num_experts_per_tok")) {
    model.moe_layer_freq = 0;
    model.rope_scaling.emplace();
    model.rope_scaling->rope_type = config::RopeType::yarn;
    model.rope_scaling->factor = 2;
  }
  model.qkv_bias = family.has("qkv_bias");
  model.attention_bias = family.has("attention_bias");
  if (family.has("clip_qkv")) model.clip_qkv = 1;
  if (family.has("n_shared_experts")) model.n_shared_experts = 1;
  if (family.has("shared_expert_intermediate_size")) {
    model.moe_layer_freq = 1;
    model.mlp_only_layers = {0};
    model.shared_expert_intermediate_size = 20;
  }
}

inline ir::Mesh mesh_of(int data, int expert, int tensor) { return {{1, data, expert, tensor}}; }

// Four ranks split in every way, and eight along all axes.
inline const std::vector<ir::Mesh> meshes{mesh_of(4, 1, 1), mesh_of(2, 1, 2), mesh_of(2, 2, 1), mesh_of(1, 1, 4),
                                          mesh_of(1, 2, 2), mesh_of(1, 4, 1), mesh_of(2, 2, 2)};

// The same step on this mesh.
inline config::Config config_on(const ir::Mesh& mesh) {
  config::Config config = mesh_config(mesh.size(ir::batch_axes));
  config.mesh.data = mesh[ir::Axis::data];
  config.mesh.expert = mesh[ir::Axis::expert];
  config.mesh.tensor = mesh[ir::Axis::tensor];
  return config;
}

inline void check_records(const Records& found, const Records& expected, double epsilon) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    INFO("step " << i + 1);
    CHECK(found[i].loss == Approx(expected[i].loss).epsilon(epsilon));
    CHECK(found[i].aux_loss == Approx(expected[i].aux_loss).epsilon(epsilon));
    CHECK(found[i].grad_norm == Approx(expected[i].grad_norm).epsilon(10 * epsilon));
    CHECK(found[i].drop_pct.has_value() == expected[i].drop_pct.has_value());
    CHECK(found[i].drop_pct.value_or(0) == Approx(expected[i].drop_pct.value_or(0)).margin(0.2));
  }
}

// The losses in the records of a run on these ranks up to `stop` (0: the end). costs: instead of measured ones.
inline std::vector<double> losses_of_run(config::Config config, const std::string& folder, int ranks, int stop,
                                         const cost::Costs* costs = nullptr) {
  config.log.run_dir = folder;
  config.train.stop_after = stop;
  std::atomic<int> wrong{0};
  const Status status = comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    const Status mine = train::train(config, world, {.local_ranks = ranks, .costs = costs});
    wrong += (mine.ok() ? ExitCode::done : mine.error().code) != (stop > 0 ? ExitCode::saved : ExitCode::done);
    return {};
  });
  if (!status.ok()) FAIL(status.error().message);
  REQUIRE(wrong == 0);
  std::vector<double> losses;
  std::ifstream in(folder + "/metrics.jsonl");
  for (std::string line; std::getline(in, line);)
    if (const auto at = line.find("\"loss\": "); at != line.npos) losses.push_back(std::stod(line.substr(at + 8)));
  return losses;
}

}  // namespace lancet::test
