// Llama. Touvron et al., LLaMA: Open and Efficient Foundation Language Models.
#include "names.h"

namespace lancet::config::families {

extern const Family llama{
    .name = "llama", .fields = {common_names, rotary_names, attention_bias_name}, .set_defaults = [](Model& model) {
      set_dense(model);
      model.layer_norm_epsilon = 1e-6;
    }};

}  // namespace lancet::config::families
