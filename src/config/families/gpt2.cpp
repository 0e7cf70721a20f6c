// GPT-2, and with experts in place of some FFNs. Radford et al., Language Models are Unsupervised Multitask Learners.
#include "names.h"

namespace lancet::config::families {
namespace {

constexpr std::string_view gpt2_names[] = {"n_layer",           "n_head",           "n_embd",
                                           "n_positions",       "n_inner",          "layer_norm_epsilon",
                                           "moe_layer_freq",    "experts_per_rank", "first_k_dense_replace",
                                           "num_local_experts", "norm_topk_prob",   "moe_intermediate_size",
                                           "n_shared_experts"};

using enum FilePart;

constexpr FileTensor gpt2_tensors[] = {
    {"wte.weight", "transformer.wte.weight"},
    {"wpe.weight", "transformer.wpe.weight"},
    {"h.N.ln_1.weight", "transformer.h.N.ln_1.weight"},
    {"h.N.ln_1.bias", "transformer.h.N.ln_1.bias"},
    {"h.N.attn.c_attn.weight", "transformer.h.N.attn.c_attn.weight", transposed},
    {"h.N.attn.c_attn.bias", "transformer.h.N.attn.c_attn.bias"},
    {"h.N.attn.c_proj.weight", "transformer.h.N.attn.c_proj.weight", transposed},
    {"h.N.attn.c_proj.bias", "transformer.h.N.attn.c_proj.bias"},
    {"h.N.ln_2.weight", "transformer.h.N.ln_2.weight"},
    {"h.N.ln_2.bias", "transformer.h.N.ln_2.bias"},
    {"h.N.mlp.c_fc.weight", "transformer.h.N.mlp.c_fc.weight", transposed},
    {"h.N.mlp.c_fc.bias", "transformer.h.N.mlp.c_fc.bias"},
    {"h.N.mlp.c_proj.weight", "transformer.h.N.mlp.c_proj.weight", transposed},
    {"h.N.mlp.c_proj.bias", "transformer.h.N.mlp.c_proj.bias"},
    {"h.N.moe.gate.weight", "transformer.h.N.moe.gate.weight"},
    {"h.N.moe.gate.bias", "transformer.h.N.moe.gate.bias"},
    {"h.N.moe.experts.c_fc.weight", "transformer.h.N.moe.experts.E.c_fc.weight", transposed},
    {"h.N.moe.experts.c_fc.bias", "transformer.h.N.moe.experts.E.c_fc.bias"},
    {"h.N.moe.experts.c_proj.weight", "transformer.h.N.moe.experts.E.c_proj.weight", transposed},
    {"h.N.moe.experts.c_proj.bias", "transformer.h.N.moe.experts.E.c_proj.bias"},
    {"h.N.moe.shared_experts.c_fc.weight", "transformer.h.N.moe.shared_experts.c_fc.weight", transposed},
    {"h.N.moe.shared_experts.c_fc.bias", "transformer.h.N.moe.shared_experts.c_fc.bias"},
    {"h.N.moe.shared_experts.c_proj.weight", "transformer.h.N.moe.shared_experts.c_proj.weight", transposed},
    {"h.N.moe.shared_experts.c_proj.bias", "transformer.h.N.moe.shared_experts.c_proj.bias"},
    {"ln_f.weight", "transformer.ln_f.weight"},
    {"ln_f.bias", "transformer.ln_f.bias"},
};
constexpr FileField gpt2_fields[] = {{"n_layer", true},      {"n_head", true},     {"n_embd", true},
                                     {"n_positions", true},  {"vocab_size", true}, {"n_inner"},
                                     {"layer_norm_epsilon"}, {"initializer_range"}};
constexpr FileField gpt2_expert_fields[] = {{"moe_layer_freq", true},
                                            {"num_local_experts", true},
                                            {"num_experts_per_tok", true},
                                            {"router", true},
                                            {"capacity_factor", true},
                                            {"router_aux_loss_coef", true},
                                            {"router_aux_loss_scope", true},
                                            {"norm_topk_prob"},
                                            {"moe_intermediate_size"},
                                            {"n_shared_experts"},
                                            {"first_k_dense_replace"},
                                            {"router_second_expert"},
                                            {"router_skipped_slots"},
                                            {"router_aux_loss_form"},
                                            {"router_jitter_noise"},
                                            {"router_z_loss_coef"},
                                            {"router_groups"},
                                            {"router_topk_groups"},
                                            {"routed_scaling_factor"},
                                            {"router_bias_update_rate"},
                                            {"router_group_size"}};
constexpr FixedField gpt2_fixed[] = {
    {"activation_function", "\"gelu_new\"",
     R"(["gelu_pytorch_tanh", "gelu_fast", "gelu_accurate", "gelu_python_tanh"])"},
    {"scale_attn_weights", "true"},
    {"scale_attn_by_inverse_layer_idx", "false"},
    {"add_cross_attention", "false"},
    {"tie_word_embeddings", "true", "[false]"},  // HuggingFaceFolder::check_head() compares the two
    {"attn_pdrop", "0.0", "[]", true},
    {"embd_pdrop", "0.0", "[]", true},
    {"resid_pdrop", "0.0", "[]", true}};
constexpr std::string_view gpt2_unused[] = {
    "n_ctx",        "reorder_and_upcast_attn", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
    "summary_type", "summary_use_proj"};
constexpr std::string_view gpt2_buffers[] = {".attn.bias", ".attn.masked_bias"};

}  // namespace

const Family gpt2{.name = "gpt2",
                  .program = "gpt2-moe",
                  .norm = Norm::layer,
                  .positions = Positions::learned,
                  .ffn = Ffn::gelu,
                  .biases = true,
                  .first_block = 0,
                  .fields = {common_names, router_names, gpt2_names},
                  .set_defaults = [](Model&) {},
                  .file = {.architecture = "GPT2LMHeadModel",
                           .prefix = "transformer.",
                           .tensors = {gpt2_tensors},
                           .buffers = gpt2_buffers,
                           .fields = gpt2_fields,
                           .fixed = {gpt2_fixed},
                           .unused = gpt2_unused,
                           .moe_type = "gpt2_moe",
                           .moe_architecture = "GPT2MoELMHeadModel",
                           .moe_fields = gpt2_expert_fields}};

}  // namespace lancet::config::families
