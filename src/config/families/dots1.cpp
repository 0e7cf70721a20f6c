// dots.llm1: Qwen3's attention, a sigmoid router with a bias and groups, plain shared experts, dense blocks first. Huo
// et al., dots.llm1 Technical Report.
#include "llama_files.h"
#include "names.h"

namespace lancet::config::families {
namespace {

constexpr std::string_view dots1_names[] = {
    "n_routed_experts", "n_shared_experts", "moe_intermediate_size", "first_k_dense_replace", "norm_topk_prob",
    "n_group",          "topk_group",       "attention_bias"};

constexpr FileTensor dots1_shared[] = {
    {"h.N.moe.gate.bias", "model.layers.N.mlp.gate.e_score_correction_bias"},
    {"h.N.moe.shared_experts.c_fc.weight", "model.layers.N.mlp.shared_experts.gate_proj.weight", gate},
    {"h.N.moe.shared_experts.c_fc.weight", "model.layers.N.mlp.shared_experts.up_proj.weight", up},
    {"h.N.moe.shared_experts.c_proj.weight", "model.layers.N.mlp.shared_experts.down_proj.weight"},
};
constexpr FileField dots1_fields[] = {{"routed_scaling_factor"}};
constexpr FixedField dots1_fixed[] = {{"scoring_func", "\"noaux_tc\"", R"(["sigmoid"])"}, {"sliding_window", "null"}};

constexpr FileFormat dots1_files() {
  FileFormat files = llama_files("Dots1ForCausalLM", dots1_fixed, qwen_experts, dots1_shared);
  files.first_window = 62;
  files.moe_fields = dots1_fields;
  return files;
}

}  // namespace

extern const Family dots1{.name = "dots1",
                          .head_norm = HeadNorm::each_head,
                          .fields = {common_names, rotary_names, ungrouped_router_names, dots1_names},
                          .set_defaults =
                              [](Model& model) {
                                set_experts(model, 128, 6);
                                model.layer_norm_epsilon = 1e-6;
                                model.router = Router::sigmoid;
                                model.router_topk_groups = 1;
                              },
                          .file = dots1_files()};

}  // namespace lancet::config::families
