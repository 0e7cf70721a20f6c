// Qwen2-MoE: biases of queries, keys and values, narrow experts and a gated shared one. Yang et al., Qwen2 Technical
// Report.
#include "llama_files.h"
#include "names.h"

namespace lancet::config::families {
namespace {

constexpr std::string_view qwen2_moe_names[] = {
    "num_experts", "moe_intermediate_size",          "decoder_sparse_step", "norm_topk_prob", "mlp_only_layers",
    "qkv_bias",    "shared_expert_intermediate_size"};

constexpr FileTensor qwen2_moe_shared[] = {
    {"h.N.moe.shared_experts.c_fc.weight", "model.layers.N.mlp.shared_expert.gate_proj.weight", gate},
    {"h.N.moe.shared_experts.c_fc.weight", "model.layers.N.mlp.shared_expert.up_proj.weight", up},
    {"h.N.moe.shared_experts.c_proj.weight", "model.layers.N.mlp.shared_expert.down_proj.weight"},
    {"h.N.moe.shared_experts.gate.weight", "model.layers.N.mlp.shared_expert_gate.weight"},
};
constexpr FixedField qwen2_moe_fixed[] = {{"attention_bias", "false"}, {"use_sliding_window", "false"}};

}  // namespace

extern const Family qwen2_moe{
    .name = "qwen2_moe",
    .gates_shared_expert = true,
    .fields = {common_names, rotary_names, router_names, qwen2_moe_names},
    .set_defaults =
        [](Model& model) {
          set_experts(model, 60, 4);
          model.layer_norm_epsilon = 1e-6;
          model.qkv_bias = true;
        },
    .file = llama_files("Qwen2MoeForCausalLM", qwen2_moe_fixed, qwen_experts, qwen2_moe_shared)};

}  // namespace lancet::config::families
