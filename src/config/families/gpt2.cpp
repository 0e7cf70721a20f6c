// GPT-2, and with experts in place of some FFNs. Radford et al., Language Models are Unsupervised Multitask Learners.
#include "names.h"

namespace lancet::config::families {
namespace {

constexpr std::string_view gpt2_names[] = {"n_layer",           "n_head",           "n_embd",
                                           "n_positions",       "n_inner",          "layer_norm_epsilon",
                                           "moe_layer_freq",    "experts_per_rank", "first_k_dense_replace",
                                           "num_local_experts", "norm_topk_prob",   "moe_intermediate_size",
                                           "n_shared_experts"};

}  // namespace

const Family gpt2{.name = "gpt2",
                  .program = "gpt2-moe",
                  .norm = Norm::layer,
                  .positions = Positions::learned,
                  .ffn = Ffn::gelu,
                  .biases = true,
                  .first_block = 0,
                  .fields = {common_names, router_names, gpt2_names},
                  .set_defaults = [](Model&) {}};

}  // namespace lancet::config::families
