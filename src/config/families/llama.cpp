// Llama. Touvron et al., LLaMA: Open and Efficient Foundation Language Models.
#include "llama_files.h"
#include "names.h"

namespace lancet::config::families {
namespace {

constexpr FixedField llama_fixed[] = {{"mlp_bias", "false"}};

}  // namespace

extern const Family llama{.name = "llama",
                          .mixture = "mixtral",
                          .fields = {common_names, rotary_names, attention_bias_name},
                          .set_defaults =
                              [](Model& model) {
                                set_dense(model);
                                model.layer_norm_epsilon = 1e-6;
                              },
                          .file = llama_files("LlamaForCausalLM", llama_fixed)};

}  // namespace lancet::config::families
