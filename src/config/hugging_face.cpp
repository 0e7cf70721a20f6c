#include "lancet/config/hugging_face.h"

namespace lancet::config {
namespace {

using enum FilePart;

constexpr FileTensor gpt2_tensors[] = {
    {"wte.weight", "transformer.wte.weight"},
    {"wpe.weight", "transformer.wpe.weight"},
    {"h.N.ln_1.weight", "transformer.h.N.ln_1.weight"},
    {"h.N.ln_1.bias", "transformer.h.N.ln_1.bias"},
    {"h.N.attn.c_attn.weight", "transformer.h.N.attn.c_attn.weight", transposed},
    {"h.N.attn.c_attn.bias", "transformer.h.N.attn.c_attn.bias"},
    {"h.N.attn.c_proj.weight", "transformer.h.N.attn.c_proj.weight", transposed},
    {"h.N.attn.c_proj.bias", "transformer.h.N.attn.c_proj.bias"},
    {"h.N.ln_2.weight", "transformer.h.N.ln_2.weight"},
    {"h.N.ln_2.bias", "transformer.h.N.ln_2.bias"},
    {"h.N.mlp.c_fc.weight", "transformer.h.N.mlp.c_fc.weight", transposed},
    {"h.N.mlp.c_fc.bias", "transformer.h.N.mlp.c_fc.bias"},
    {"h.N.mlp.c_proj.weight", "transformer.h.N.mlp.c_proj.weight", transposed},
    {"h.N.mlp.c_proj.bias", "transformer.h.N.mlp.c_proj.bias"},
    {"h.N.moe.gate.weight", "transformer.h.N.moe.gate.weight"},
    {"h.N.moe.gate.bias", "transformer.h.N.moe.gate.bias"},
    {"h.N.moe.experts.c_fc.weight", "transformer.h.N.moe.experts.E.c_fc.weight", transposed},
    {"h.N.moe.experts.c_fc.bias", "transformer.h.N.moe.experts.E.c_fc.bias"},
    {"h.N.moe.experts.c_proj.weight", "transformer.h.N.moe.experts.E.c_proj.weight", transposed},
    {"h.N.moe.experts.c_proj.bias", "transformer.h.N.moe.experts.E.c_proj.bias"},
    {"h.N.moe.shared_experts.c_fc.weight", "transformer.h.N.moe.shared_experts.c_fc.weight", transposed},
    {"h.N.moe.shared_experts.c_fc.bias", "transformer.h.N.moe.shared_experts.c_fc.bias"},
    {"h.N.moe.shared_experts.c_proj.weight", "transformer.h.N.moe.shared_experts.c_proj.weight", transposed},
    {"h.N.moe.shared_experts.c_proj.bias", "transformer.h.N.moe.shared_experts.c_proj.bias"},
    {"ln_f.weight", "transformer.ln_f.weight"},
    {"ln_f.bias", "transformer.ln_f.bias"},
};

constexpr FileTensor llama_tensors[] = {
    {"wte.weight", "model.embed_tokens.weight"},
    {"h.N.ln_1.weight", "model.layers.N.input_layernorm.weight"},
    {"h.N.attn.c_attn.weight", "model.layers.N.self_attn.q_proj.weight", query},
    {"h.N.attn.c_attn.weight", "model.layers.N.self_attn.k_proj.weight", key},
    {"h.N.attn.c_attn.weight", "model.layers.N.self_attn.v_proj.weight", value},
    {"h.N.attn.c_proj.weight", "model.layers.N.self_attn.o_proj.weight"},
    {"h.N.attn.q_norm.weight", "model.layers.N.self_attn.q_norm.weight"},
    {"h.N.attn.k_norm.weight", "model.layers.N.self_attn.k_norm.weight"},
    {"h.N.ln_2.weight", "model.layers.N.post_attention_layernorm.weight"},
    {"h.N.mlp.c_fc.weight", "model.layers.N.mlp.gate_proj.weight", gate},
    {"h.N.mlp.c_fc.weight", "model.layers.N.mlp.up_proj.weight", up},
    {"h.N.mlp.c_proj.weight", "model.layers.N.mlp.down_proj.weight"},
    {"ln_f.weight", "model.norm.weight"},
    {"lm_head.weight", "lm_head.weight"},
};

constexpr FileTensor qwen_experts[] = {
    {"h.N.moe.gate.weight", "model.layers.N.mlp.gate.weight"},
    {"h.N.moe.experts.c_fc.weight", "model.layers.N.mlp.experts.E.gate_proj.weight", gate},
    {"h.N.moe.experts.c_fc.weight", "model.layers.N.mlp.experts.E.up_proj.weight", up},
    {"h.N.moe.experts.c_proj.weight", "model.layers.N.mlp.experts.E.down_proj.weight"},
    {"h.N.moe.experts.c_fc.weight", "model.layers.N.mlp.experts.gate_up_proj", gate_up, 1},
    {"h.N.moe.experts.c_proj.weight", "model.layers.N.mlp.experts.down_proj", whole, 1},
};

constexpr FileTensor mixtral_experts[] = {
    {"h.N.moe.gate.weight", "model.layers.N.block_sparse_moe.gate.weight"},
    {"h.N.moe.experts.c_fc.weight", "model.layers.N.block_sparse_moe.experts.E.w1.weight", gate},
    {"h.N.moe.experts.c_fc.weight", "model.layers.N.block_sparse_moe.experts.E.w3.weight", up},
    {"h.N.moe.experts.c_proj.weight", "model.layers.N.block_sparse_moe.experts.E.w2.weight"},
    {"h.N.moe.gate.weight", "model.layers.N.mlp.gate.weight", whole, 1},
    {"h.N.moe.experts.c_fc.weight", "model.layers.N.mlp.experts.gate_up_proj", gate_up, 1},
    {"h.N.moe.experts.c_proj.weight", "model.layers.N.mlp.experts.down_proj", whole, 1},
};

constexpr std::string_view masks[] = {".attn.bias", ".attn.masked_bias"}, angles[] = {".rotary_emb.inv_freq"};

constexpr FileFormat gpt2_format{"GPT2LMHeadModel", "transformer.", gpt2_tensors, {}, masks};
constexpr FileFormat llama_format{"LlamaForCausalLM", "model.", llama_tensors, {}, angles};
constexpr FileFormat mixtral_format{"MixtralForCausalLM", "model.", llama_tensors, mixtral_experts, angles};
constexpr FileFormat qwen3_format{"Qwen3ForCausalLM", "model.", llama_tensors, {}, angles};
constexpr FileFormat qwen3_moe_format{"Qwen3MoeForCausalLM", "model.", llama_tensors, qwen_experts, angles};

}  // namespace

const FileFormat& file_format(ModelType type) {
  switch (type) {
    case ModelType::llama:
      return llama_format;
    case ModelType::mixtral:
      return mixtral_format;
    case ModelType::qwen3:
      return qwen3_format;
    case ModelType::qwen3_moe:
      return qwen3_moe_format;
    case ModelType::gpt2:
      break;
  }
  return gpt2_format;
}

}  // namespace lancet::config
