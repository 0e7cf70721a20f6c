// Mixtral: Llama's blocks, each of whose FFNs is an MoE layer. Jiang et al., Mixtral of Experts.
#include "llama_files.h"
#include "names.h"

namespace lancet::config::families {
namespace {

constexpr std::string_view mixtral_names[] = {"num_local_experts"};

constexpr FileTensor mixtral_experts[] = {
    {"h.N.moe.gate.weight", "model.layers.N.block_sparse_moe.gate.weight"},
    {"h.N.moe.experts.c_fc.weight", "model.layers.N.block_sparse_moe.experts.E.w1.weight", gate},
    {"h.N.moe.experts.c_fc.weight", "model.layers.N.block_sparse_moe.experts.E.w3.weight", up},
    {"h.N.moe.experts.c_proj.weight", "model.layers.N.block_sparse_moe.experts.E.w2.weight"},
    {"h.N.moe.gate.weight", "model.layers.N.mlp.gate.weight", whole, 1},
    {"h.N.moe.experts.c_fc.weight", "model.layers.N.mlp.experts.gate_up_proj", gate_up, 1},
    {"h.N.moe.experts.c_proj.weight", "model.layers.N.mlp.experts.down_proj", whole, 1},
};
constexpr FixedField mixtral_fixed[] = {
    {"attention_bias", "false"}, {"sliding_window", "null"}, {"router_jitter_noise", "0.0"}};

}  // namespace

extern const Family mixtral{.name = "mixtral",
                            .fields = {common_names, rotary_names, router_names, mixtral_names},
                            .set_defaults =
                                [](Model& model) {
                                  set_experts(model, 8, 2);
                                  model.norm_topk_prob = true;  // it has no field for it
                                  model.rope_theta = 1e6;
                                },
                            .file = llama_files("MixtralForCausalLM", mixtral_fixed, mixtral_experts)};

}  // namespace lancet::config::families
