// Qwen3-MoE: Qwen3's attention and narrow experts. Yang et al., Qwen3 Technical Report.
#include "llama_files.h"
#include "names.h"

namespace lancet::config::families {
namespace {

constexpr std::string_view qwen3_moe_names[] = {"num_experts",    "moe_intermediate_size", "decoder_sparse_step",
                                                "norm_topk_prob", "mlp_only_layers",       "attention_bias"};

}  // namespace

extern const Family qwen3_moe{.name = "qwen3_moe",
                              .head_norm = HeadNorm::each_head,
                              .fields = {common_names, rotary_names, router_names, qwen3_moe_names},
                              .set_defaults =
                                  [](Model& model) {
                                    set_experts(model, 128, 8);
                                    model.layer_norm_epsilon = 1e-6;
                                  },
                              .file = llama_files("Qwen3MoeForCausalLM", qwen_fixed, qwen_experts)};

}  // namespace lancet::config::families
