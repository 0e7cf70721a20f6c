// dots.llm1: Qwen3's attention, a sigmoid router with a bias and groups, plain shared experts, dense blocks first. Huo
// et al., dots.llm1 Technical Report.
#include "names.h"

namespace lancet::config::families {
namespace {

constexpr std::string_view dots1_names[] = {
    "n_routed_experts", "n_shared_experts", "moe_intermediate_size", "first_k_dense_replace", "norm_topk_prob",
    "n_group",          "topk_group",       "attention_bias"};

}  // namespace

extern const Family dots1{.name = "dots1",
                          .head_norm = HeadNorm::each_head,
                          .fields = {common_names, rotary_names, ungrouped_router_names, dots1_names},
                          .set_defaults =
                              [](Model& model) {
                                set_experts(model, 128, 6);
                                model.layer_norm_epsilon = 1e-6;
                                model.router = Router::sigmoid;
                              },
                          .file = {}};

}  // namespace lancet::config::families
