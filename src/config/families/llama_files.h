// The tables of file_format.h that several families with Llama's blocks share.
#pragma once
#include "lancet/config/file_format.h"

namespace lancet::config::families {

using enum FilePart;

inline constexpr FileTensor llama_tensors[] = {
    {"wte.weight", "model.embed_tokens.weight"},
    {"h.N.ln_1.weight", "model.layers.N.input_layernorm.weight"},
    {"h.N.attn.c_attn.weight", "model.layers.N.self_attn.q_proj.weight", query},
    {"h.N.attn.c_attn.weight", "model.layers.N.self_attn.k_proj.weight", key},
    {"h.N.attn.c_attn.weight", "model.layers.N.self_attn.v_proj.weight", value},
    {"h.N.attn.c_attn.bias", "model.layers.N.self_attn.q_proj.bias", query},
    {"h.N.attn.c_attn.bias", "model.layers.N.self_attn.k_proj.bias", key},
    {"h.N.attn.c_attn.bias", "model.layers.N.self_attn.v_proj.bias", value},
    {"h.N.attn.c_proj.weight", "model.layers.N.self_attn.o_proj.weight"},
    {"h.N.attn.c_proj.bias", "model.layers.N.self_attn.o_proj.bias"},
    {"h.N.attn.q_norm.weight", "model.layers.N.self_attn.q_norm.weight"},
    {"h.N.attn.k_norm.weight", "model.layers.N.self_attn.k_norm.weight"},
    {"h.N.ln_2.weight", "model.layers.N.post_attention_layernorm.weight"},
    {"h.N.mlp.c_fc.weight", "model.layers.N.mlp.gate_proj.weight", gate},
    {"h.N.mlp.c_fc.weight", "model.layers.N.mlp.up_proj.weight", up},
    {"h.N.mlp.c_proj.weight", "model.layers.N.mlp.down_proj.weight"},
    {"ln_f.weight", "model.norm.weight"},
    {"lm_head.weight", "lm_head.weight"},
};

// The narrow experts of Qwen and of those that follow it.
inline constexpr FileTensor qwen_experts[] = {
    {"h.N.moe.gate.weight", "model.layers.N.mlp.gate.weight"},
    {"h.N.moe.experts.c_fc.weight", "model.layers.N.mlp.experts.E.gate_proj.weight", gate},
    {"h.N.moe.experts.c_fc.weight", "model.layers.N.mlp.experts.E.up_proj.weight", up},
    {"h.N.moe.experts.c_proj.weight", "model.layers.N.mlp.experts.E.down_proj.weight"},
    {"h.N.moe.experts.c_fc.weight", "model.layers.N.mlp.experts.gate_up_proj", gate_up, 1},
    {"h.N.moe.experts.c_proj.weight", "model.layers.N.mlp.experts.down_proj", whole, 1},
};

// Of these, a file has those that its family has.
inline constexpr FileField rotary_fields[] = {{"vocab_size", true},
                                              {"hidden_size", true},
                                              {"intermediate_size", true},
                                              {"num_hidden_layers", true},
                                              {"num_attention_heads", true},
                                              {"num_key_value_heads"},
                                              {"head_dim"},
                                              {"max_position_embeddings", true},
                                              {"rms_norm_eps"},
                                              {"rope_theta"},
                                              {"rope_scaling"},
                                              {"tie_word_embeddings"},
                                              {"initializer_range"},
                                              {"attention_bias"},
                                              {"qkv_bias"},
                                              {"clip_qkv"},
                                              {"num_experts", true, "num_local_experts"},
                                              {"num_local_experts", true, "num_experts"},
                                              {"n_routed_experts", true, "num_local_experts"},
                                              {"n_shared_experts", true},
                                              {"first_k_dense_replace"},
                                              {"n_group"},
                                              {"topk_group"},
                                              {"num_experts_per_tok", true},
                                              {"moe_intermediate_size", true},
                                              {"shared_expert_intermediate_size", true},
                                              {"decoder_sparse_step"},
                                              {"mlp_only_layers"},
                                              {"norm_topk_prob"},
                                              {"router_aux_loss_coef"}};

inline constexpr FixedField qwen_fixed[] = {{"use_sliding_window", "false"}};
inline constexpr FixedField rotary_fixed[] = {{"hidden_act", "\"silu\""}, {"attention_dropout", "0.0", "[]", true}};
inline constexpr std::string_view rotary_unused[] = {"output_router_logits", "pretraining_tp", "sliding_window",
                                                     "max_window_layers"};

inline constexpr std::string_view llama_buffers[] = {".rotary_emb.inv_freq"};

// What all of them have; a family adds its architecture and its experts, those of a token and those of all tokens.
constexpr FileFormat llama_files(std::string_view architecture, std::span<const FixedField> own_fixed,
                                 std::span<const FileTensor> experts = {}, std::span<const FileTensor> shared = {}) {
  return {.architecture = architecture,
          .prefix = "model.",
          .tensors = {llama_tensors, experts, shared},
          .buffers = llama_buffers,
          .fields = rotary_fields,
          .fixed = {rotary_fixed, own_fixed},
          .unused = rotary_unused};
}

}  // namespace lancet::config::families
