// Qwen3: Llama's blocks with norms of queries and keys. Yang et al., Qwen3 Technical Report.
#include "llama_files.h"
#include "names.h"

namespace lancet::config::families {
extern const Family qwen3{.name = "qwen3",
                          .mixture = "qwen3_moe",
                          .head_norm = HeadNorm::each_head,
                          .fields = {common_names, rotary_names, attention_bias_name},
                          .set_defaults =
                              [](Model& model) {
                                set_dense(model);
                                model.layer_norm_epsilon = 1e-6;
                                model.head_dim = 128;
                              },
                          .file = llama_files("Qwen3ForCausalLM", qwen_fixed)};

}  // namespace lancet::config::families
