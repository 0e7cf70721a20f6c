// The fields `model` of a config: the sizes of a GPT-2 and of its mixture-of-experts layers, and their router.
#pragma once
#include <cstdint>
#include <numeric>
#include <optional>
#include <string_view>

#include "lancet/ir/mesh.h"

namespace lancet::config {

// "switch", "batch_prioritized", "top_k", "gshard", "hash", "random", "sigmoid", "expert_choice"
enum class Router { switch_top1, batch_prioritized, top_k, gshard, hash, random, sigmoid, expert_choice };
enum class SecondExpert { random, always };
enum class SkippedSlots { kept, free };
enum class AuxLossForm { switch_form, gshard };  // "switch", "gshard"
enum class AuxLossScope { rank, global, group };

// The word of the value in the JSON file.
std::string_view name(Router value);
std::string_view name(SecondExpert value);
std::string_view name(SkippedSlots value);
std::string_view name(AuxLossForm value);
std::string_view name(AuxLossScope value);

struct Model {
  std::int64_t n_layer = 12;
  std::int64_t n_head = 12;
  std::int64_t n_embd = 768;
  std::int64_t n_positions = 1024;
  std::int64_t vocab_size = 50257;
  std::optional<std::int64_t> n_inner;  // null: 4 * n_embd
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  std::int64_t moe_layer_freq = 2;                // 0: dense
  std::int64_t first_k_dense_replace = 0;         // DeepSeek's: the first blocks, which are dense
  std::optional<std::int64_t> experts_per_rank;   // at most one of these two is given; if none is, 2
  std::optional<std::int64_t> num_local_experts;  // experts of a layer over all ranks (Mixtral's name)
  std::int64_t num_experts_per_tok = 1;
  bool norm_topk_prob = false;  // Mixtral's: the weights of a token's experts are divided by their sum
  std::optional<std::int64_t> moe_intermediate_size;  // DeepSeek's, of an expert; null: inner()
  std::int64_t n_shared_experts = 0;                  // DeepSeek's: experts that every token passes
  Router router = Router::switch_top1;
  SecondExpert router_second_expert = SecondExpert::random;  // gshard
  SkippedSlots router_skipped_slots = SkippedSlots::kept;    // gshard
  double router_jitter_noise = 0;                            // Hugging Face's name (SwitchTransformersConfig)
  std::optional<double> capacity_factor = 1.25;              // null: no choice is dropped
  double dropless_imbalance = 2;                  // without a capacity factor: what the buffers are planned for
  std::optional<std::int64_t> router_group_size;  // sequences; null: train.micro_batch_size
  double router_aux_loss_coef = 0.01;
  AuxLossForm router_aux_loss_form = AuxLossForm::switch_form;  // gshard
  AuxLossScope router_aux_loss_scope = AuxLossScope::rank;
  double router_z_loss_coef = 0;
  // Router sigmoid: groups of neighbouring experts, and those of them that a token chooses from (null: all).
  std::int64_t router_groups = 1;
  std::optional<std::int64_t> router_topk_groups;
  double routed_scaling_factor = 1, router_bias_update_rate = 0;
  std::int64_t vocab_pad_multiple = 64;

  std::int64_t inner() const { return n_inner.value_or(4 * n_embd); }
  std::int64_t expert_inner() const { return moe_intermediate_size.value_or(inner()); }
  // The shared experts of a layer are one FFN (DeepSeekMoE, section 3.2: the sum of FFNs is an FFN of their width).
  std::int64_t shared_inner() const { return n_shared_experts * expert_inner(); }
  // The rows of the token embedding where `shards` ranks split them: the least multiple of vocab_pad_multiple and of
  // `shards` that holds the vocabulary. The rows beyond the vocabulary are zero.
  std::int64_t padded_vocab(std::int64_t shards = 1) const {
    const std::int64_t multiple = std::lcm(vocab_pad_multiple, shards);
    return (vocab_size + multiple - 1) / multiple * multiple;
  }
  // Slots that an expert keeps, and that its buffer has, as multiples of an even share of the tokens' choices. A gate
  // that drops nothing keeps what is more than all tokens of any model.
  double kept_factor() const { return capacity_factor.value_or(1e6); }
  double buffer_factor() const { return capacity_factor.value_or(dropless_imbalance); }
  bool is_moe(std::int64_t block) const {
    return moe_layer_freq > 0 && block % moe_layer_freq == 0 && block >= first_k_dense_replace;
  }
  std::int64_t moe_layers() const;
  bool has_moe() const { return moe_layers() > 0; }
  bool has_dense_ffn() const { return moe_layers() < n_layer; }
  std::int64_t topk_groups() const { return router_topk_groups.value_or(router_groups); }
  bool experts_choose() const { return router == Router::expert_choice; }
  // False if experts are chosen without the scores of a router, which then has no weights.
  bool has_scores() const { return router != Router::hash && router != Router::random; }
  // Experts of one MoE layer over all ranks, where the mesh's axis `expert` has this many coordinates; 0 in a dense
  // model.
  std::int64_t experts(int expert_coordinates) const;
  // The same model, with num_local_experts in place of experts_per_rank.
  Model on(const ir::Mesh& mesh) const {
    Model model = *this;
    model.num_local_experts = experts(mesh[ir::Axis::expert]);
    model.experts_per_rank.reset();
    return model;
  }
  friend bool operator==(const Model&, const Model&) = default;
};

}  // namespace lancet::config
