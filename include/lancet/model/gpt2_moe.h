// GPT-2 with mixture-of-experts layers as a logical forward Program: the whole batch on one device. Blocks are Hugging
// Face's GPT-2 (pre-LN, gelu_new, learned positions, tied head); block i's FFN is an MoE layer where
// i % moe_layer_freq == 0 and i >= first_k_dense_replace. Every token of such a layer passes, besides the experts of
// its route, the shared experts, an FFN whose result is added without a weight (Dai et al., DeepSeekMoE, section 3.2).
//
// Parameters carry Hugging Face's names; weights of products are [out, in]:
//   wte.weight [V',D] (V' padded), wpe.weight [P,D], h.0.ln_1.weight, h.0.attn.c_attn.weight [3D,D], ..., ln_f.bias
//   h.0.moe.gate.weight f32[E,D]; h.0.moe.experts.c_fc.weight [E,F,D], .c_proj.weight [E,D,F]
//   h.0.moe.shared_experts.c_fc.weight [G,D], .c_proj.weight [D,G] (G: n_shared_experts * F)
//
// The Program has no ranks in it. Annotations (mesh/sharding.h) say how some tensors are spread over a mesh, whatever
// its sizes: the batch over `data` and `expert`, the experts over `expert`, the vocabulary over `tensor`, and the
// weights of each pair of products over `tensor`, the first by rows and the second by columns (Megatron-LM, section 3).
// passes::shard and passes::partition_spmd make each rank's Program of it. Two options are sizes of the mesh, `loads`
// and `tensor_ranks`. They change what the whole computes, not what a rank sees of it: over which tokens an auxiliary
// loss is taken, and how much padding the vocabulary and split sequences have and how the terms of the loss are added
// up.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lancet/base/dtype.h"
#include "lancet/base/shape.h"
#include "lancet/config/config.h"
#include "lancet/ir/program.h"

namespace lancet::model {

// What a forward Program of a model depends on besides the config, and what it does not say of its parameters.

enum class Mode {
  train,     // loss and the start of its gradient; outputs loss, aux.<layer>, load.<layer>
  evaluate,  // loss only
  generate,  // logits [B,S,V'] of the tokens; nothing is dropped; no targets
  decode     // the next S positions of sequences whose keys and values are kept: logits [B,1,V'] of the last valid row;
             // nothing is dropped; no targets
};

struct BuildOptions {
  Mode mode = Mode::train;
  std::int64_t batch = 1;     // sequences (B)
  std::int64_t sequence = 1;  // tokens of each (S)
  DType dtype = DType::f32;   // of activations and of the weights of products
  std::int64_t groups = 1;    // of neighbouring sequences; capacity is counted in each
  // Runs of sequences, each with an auxiliary loss of its own where that has the scope rank: as many as ranks that the
  // batch is split over.
  std::int64_t loads = 1;
  std::int64_t seed = 0;          // of the random numbers that training draws
  std::int64_t accumulation = 1;  // micro batches that make one step: the loss is the mean over all of them
  bool inspect = false;   // adds outputs score.h.<i> (if a router has scores), probability., expert., slot., filled.
  bool keep_all = false;  // gates drop nothing in train and evaluate modes either; without effect where experts choose:
                          // what they do not take is not dropped
  bool deterministic = true;  // false: attention gets the attribute of this name, with which kernels for a GPU may
                              // take a faster backward pass
  // The size of the mesh's axis `tensor`, whose ranks split the vocabulary: V' is a multiple, and with more than one
  // the loss is that of as many blocks of columns (ops/logit_stats), so that no rank needs whole rows of logits.
  std::int64_t tensor_ranks = 1;
  // The tensors between the pairs of products are split along the sequence, over `tensor`, in train and evaluate modes.
  // tensor_ranks divides S then.
  bool sequence_parallel = false;
};

// What a Program does not say of a parameter: the values that training starts with.
struct Parameter {
  std::string name;
  Shape shape;                          // of the whole parameter, whatever ranks hold of it
  bool is_experts = false;              // dimension 0 has the experts of a layer
  float value = 0;                      // of all elements, unless they are normal numbers
  std::optional<float> deviation = {};  // of these
  std::int64_t unused = 0;              // elements at the end that are zero: rows that pad the vocabulary
  std::int64_t extra_rows = 0;          // of these rows: those that a mesh without the axis `tensor` does not need
};

// Inputs of the Program: @tokens i32[B,S] and, but for generate and decode, @targets i32[B,S]; for decode, @cursor
// i32[2] (ops/decode). Where ops draw random numbers, @sequence i32[B,1]: the number of each sequence in the whole run,
// or in the evaluation, from 0 on; no two sequences of a run have one number. Its state: @h.<i>.attn.keys and .values
// [B,heads,P,head size], one set for Programs of any S. Outputs: logits; or loss f32[1], and per MoE layer aux.h.<i>
// f32[2] (auxiliary loss, router entropy; not of routers without scores) and load.h.<i> f32[2,E], or f32[2L,E] of L
// loads; where a layer has them, z_loss.h.<i> f32[1], bias.h.<i> f32[E] and rounds.h.<i> i32[1]. A layer has
// *model.num_local_experts experts (config::Model::on).
ir::Program build_forward(const config::Model& model, const BuildOptions& options);

// model: config::Model::on the mesh of the run.
std::vector<Parameter> parameters(const config::Model& model, std::int64_t tensor_ranks = 1);

struct ParameterCount {
  std::int64_t total = 0;   // of the whole model
  std::int64_t active = 0;  // used by one token
};
ParameterCount count_parameters(const config::Model& model);

}  // namespace lancet::model
