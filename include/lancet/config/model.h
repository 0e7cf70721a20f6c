// What a model is: the fields `model` of a config.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/config/family.h"
#include "lancet/ir/mesh.h"

namespace lancet::config {

enum class Router { switch_top1, batch_prioritized, top_k, gshard, hash, random, sigmoid, expert_choice };
enum class SecondExpert { random, always };
enum class SkippedSlots { kept, free };
enum class AuxLossForm { switch_form, gshard };
enum class AuxLossScope { rank, global, group };
enum class RopeType { linear, yarn, llama3 };

// The words of the JSON file, in the order of the values.
template <class... Text>
constexpr std::array<std::string_view, sizeof...(Text)> words(Text... text) {
  return {text...};
}
constexpr auto words_of(Router) {
  return words("switch", "batch_prioritized", "top_k", "gshard", "hash", "random", "sigmoid", "expert_choice");
}
constexpr auto words_of(SecondExpert) { return words("random", "always"); }
constexpr auto words_of(SkippedSlots) { return words("kept", "free"); }
constexpr auto words_of(AuxLossForm) { return words("switch", "gshard"); }
constexpr auto words_of(AuxLossScope) { return words("rank", "global", "group"); }
constexpr auto words_of(RopeType) { return words("linear", "yarn", "llama3"); }

// The word of a value.
template <class Enum>
requires requires(Enum value) { words_of(value); }
constexpr std::string_view name(Enum value) { return words_of(value)[std::size_t(value)]; }

// Of rotary positions beyond those of the training (ops/nn/rotate), in the names of Hugging Face's rope_scaling.
// Members that a rope_type does not have keep their defaults.
struct RopeScaling {
  RopeType rope_type = RopeType::linear;
  double factor = 1;
  std::optional<std::int64_t> original_max_position_embeddings;  // yarn's null: max_position_embeddings
  std::optional<double> attention_factor, mscale, mscale_all_dim;
  double beta_fast = 32, beta_slow = 1;
  double low_freq_factor = 1, high_freq_factor = 4;
  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

// The fields `model` of a config: the family and sizes of a model and of its mixture-of-experts layers, and their
// router. Members have GPT-2's names; fields.cpp says under which other names families have them.
struct Model {
  std::string from = {};  // the folder of Hugging Face's format that gave the other fields; empty: none
  const Family* model_type = &families::gpt2;
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
  std::optional<std::int64_t> num_key_value_heads;  // null: n_head
  std::optional<std::int64_t> head_dim;             // null: n_embd / n_head
  double rope_theta = 10000;
  std::optional<RopeScaling> rope_scaling;
  bool tie_word_embeddings = true;  // the head is the token embedding
  std::optional<double> clip_qkv;   // the largest absolute value of queries, keys and values, with norms of whole rows
  bool qkv_bias = false;            // of queries, keys and values
  bool attention_bias = false;      // of these and of attention's second product
  std::vector<std::int64_t> mlp_only_layers = {};               // dense whatever moe_layer_freq says
  std::optional<std::int64_t> shared_expert_intermediate_size;  // of a gated shared expert; null: inner()

  const Family& family() const { return *model_type; }
  std::int64_t key_heads() const { return num_key_value_heads.value_or(n_head); }
  std::int64_t head_size() const { return head_dim.value_or(n_embd / n_head); }
  std::int64_t inner() const { return n_inner.value_or(4 * n_embd); }
  std::int64_t expert_inner() const { return moe_intermediate_size.value_or(inner()); }
  // The shared experts of a layer are one FFN (DeepSeekMoE, section 3.2: the sum of FFNs is an FFN of their width).
  std::int64_t shared_inner() const {
    return family().gates_shared_expert ? shared_expert_intermediate_size.value_or(inner())
                                        : n_shared_experts * expert_inner();
  }
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
    return moe_layer_freq > 0 && (block + family().first_block) % moe_layer_freq == 0 &&
           block >= first_k_dense_replace && std::ranges::find(mlp_only_layers, block) == mlp_only_layers.end();
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
  // The same model, with the values that null stands for.
  Model resolved() const {
    Model model = *this;
    model.num_key_value_heads = key_heads();
    model.head_dim = head_size();
    model.n_inner = inner();
    model.moe_intermediate_size = expert_inner();
    model.shared_expert_intermediate_size = shared_expert_intermediate_size.value_or(inner());
    model.router_topk_groups = topk_groups();
    return model;
  }
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
