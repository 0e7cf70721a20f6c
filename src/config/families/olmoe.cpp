// OLMoE: norms of all queries and all keys of a token, and narrow experts in every block. Muennighoff et al., OLMoE:
// Open Mixture-of-Experts Language Models.
#include "llama_files.h"
#include "names.h"

namespace lancet::config::families {
namespace {

constexpr std::string_view olmoe_names[] = {"num_experts", "norm_topk_prob", "attention_bias", "clip_qkv"};

}  // namespace

extern const Family olmoe{.name = "olmoe",
                          .head_norm = HeadNorm::whole_row,
                          .fields = {common_names, rotary_names, router_names, olmoe_names},
                          .set_defaults =
                              [](Model& model) {
                                set_experts(model, 64, 8);
                                model.router_aux_loss_coef = 0.01;
                              },
                          .file = llama_files("OlmoeForCausalLM", {}, qwen_experts)};

}  // namespace lancet::config::families
