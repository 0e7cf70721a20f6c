// A model with mixture-of-experts layers as a logical forward Program: the whole batch on one device. Norms come before
// attention and FFN; config::Family says which blocks there are. Block i's FFN is an MoE layer where
// config::Model::is_moe(i). Every token of such a layer passes, besides the experts of its route, the shared experts,
// an FFN whose result is added without a weight (Dai et al., DeepSeekMoE, section 3.2), or times a sigmoid gate.
//
// Parameters carry the names of Hugging Face's GPT-2 in every family; weights of products are [out, in]. Beside those
// of GPT-2 there may be lm_head.weight, h.0.attn.q_norm.weight and .k_norm.weight; with SwiGLU c_fc has gate and up of
// each feature side by side, 2F rows:
//   wte.weight [V',D] (V' padded), wpe.weight [P,D], h.0.ln_1.weight, h.0.attn.c_attn.weight [3D,D], ..., ln_f.bias
//   h.0.moe.gate.weight f32[E,D]; h.0.moe.experts.c_fc.weight [E,F,D], .c_proj.weight [E,D,F]
//   h.0.moe.shared_experts.c_fc.weight [G,D], .c_proj.weight [D,G] (G: shared_inner()), .gate.weight [1,D]
//
// The Program has no ranks in it. Annotations (ir/sharding.h) say how some tensors are spread over a mesh, whatever
// its sizes: the batch over `data` and `expert`, the experts over `expert`, the vocabulary over `tensor`, and the
// weights of each pair of products over `tensor`, the first by rows and the second by columns (Megatron-LM, section 3).
// passes::shard and passes::partition_spmd make each rank's Program of it. Two options are sizes of the mesh, `loads`
// and `tensor_ranks`. They change what the whole computes, not what a rank sees of it: over which tokens an auxiliary
// loss is taken, and how much padding the vocabulary and split sequences have and how the terms of the loss are added
// up.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "lancet/config/config.h"
#include "lancet/ir/program.h"
#include "lancet/ir/sharding.h"
#include "lancet/model/build_options.h"

namespace lancet::model {

// Inputs of the Program: @tokens i32[B,S] and, but for generate and decode, @targets i32[B,S]; for decode, @cursor
// i32[2] (ops/nn/decode). Where ops draw random numbers, @sequence i32[B,1]: the number of each sequence in the whole
// run, or in the evaluation, from 0 on; no two sequences of a run have one number. Its state: @h.<i>.attn.keys and
// .values [B,heads,C,head size], one set for Programs of any S. Outputs: logits; or loss f32[1], and per MoE layer
// aux.h.<i> f32[2] (auxiliary loss, router entropy; not of routers without scores) and load.h.<i> f32[2,E], or
// f32[2L,E] of L loads; where a layer has them, z_loss.h.<i> f32[1], bias.h.<i> f32[E] and rounds.h.<i> i32[1]. A layer
// has *model.num_local_experts experts (config::Model::on).
ir::Program build_forward(const config::Model& model, const BuildOptions& options);

// model: config::Model::on the mesh of the run.
std::vector<Parameter> parameters(const config::Model& model, std::int64_t tensor_ranks = 1);

struct ParameterCount {
  std::int64_t total = 0;   // of the whole model
  std::int64_t active = 0;  // used by one token
};
ParameterCount count_parameters(const config::Model& model);

// Fills `values` with those elements of the parameter that a rank holds, which `held` says: value i is held element i.
// Values are a function of (seed, parameter name, element) and thus the same at any number of ranks. GPT-2's scheme:
// normal with initializer_range, projections back into the residual divided by sqrt(2 * n_layer), layer norms 1 and 0,
// biases 0, padded vocabulary 0. Each expert draws its own numbers.
// InternalError: another number of values, or elements that the parameter has not.
void initialize(const Parameter& parameter, std::uint64_t seed, const std::vector<ir::HeldRun>& held,
                std::span<float> values);

// The slots of an expert for a group of tokens, each of which chooses `choices` experts:
// ceil(capacity_factor * choices * tokens / experts), at least 1, at most `tokens`.
std::int64_t capacity(double capacity_factor, std::int64_t tokens, std::int64_t experts, std::int64_t choices = 1);

// The choices of `tokens` tokens at experts that have as many slots together. Where experts choose, these fill all
// slots.
std::int64_t choices_of(const config::Model& model, std::int64_t tokens, std::int64_t slots);

}  // namespace lancet::model
