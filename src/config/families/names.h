// Names of fields that several families have.
#pragma once
#include "lancet/config/config.h"

namespace lancet::config::families {

inline constexpr std::string_view common_names[] = {"from", "vocab_size", "initializer_range", "vocab_pad_multiple"};

// The blocks of Llama.
inline constexpr std::string_view rotary_names[] = {
    "num_hidden_layers", "num_attention_heads", "num_key_value_heads",     "head_dim",
    "hidden_size",       "intermediate_size",   "max_position_embeddings", "rms_norm_eps",
    "rope_theta",        "rope_scaling",        "tie_word_embeddings"};

inline constexpr std::string_view attention_bias_name[] = {"attention_bias"};

// What Lancet's routers and capacity ask for.
inline constexpr std::string_view router_names[] = {"num_experts_per_tok",   "router",
                                                    "router_second_expert",  "router_skipped_slots",
                                                    "router_jitter_noise",   "capacity_factor",
                                                    "dropless_imbalance",    "router_group_size",
                                                    "router_aux_loss_coef",  "router_aux_loss_form",
                                                    "router_aux_loss_scope", "router_z_loss_coef",
                                                    "routed_scaling_factor", "router_bias_update_rate",
                                                    "router_groups",         "router_topk_groups"};

// Those of families with names of their own for groups of experts.
inline constexpr std::span ungrouped_router_names(router_names, std::size(router_names) - 2);

// A model without experts; one whose tokens choose the best of `experts` and drop nothing, as at Hugging Face.
inline void set_dense(Model& model) {
  model.tie_word_embeddings = false;
  model.moe_layer_freq = 0;
  model.router = Router::top_k;
  model.capacity_factor.reset();
}
inline void set_experts(Model& model, std::int64_t experts, std::int64_t per_token) {
  set_dense(model);
  model.moe_layer_freq = 1;
  model.num_local_experts = experts;
  model.num_experts_per_tok = per_token;
  model.router_aux_loss_coef = 0.001;
}

}  // namespace lancet::config::families
