// GPT-2 with mixture-of-experts layers as a logical forward Program: the whole batch on one device. Blocks are Hugging
// Face's GPT-2 (pre-LN, gelu_new, learned positions, tied head); block i's FFN is an MoE layer where
// i % moe_layer_freq == 0.
//
// Parameters carry Hugging Face's names; weights of products are [out, in]:
//   wte.weight [V',D] (V' padded), wpe.weight [P,D], h.0.ln_1.weight, h.0.attn.c_attn.weight [3D,D], ..., ln_f.bias
//   h.0.moe.gate.weight f32[E,D]; h.0.moe.experts.c_fc.weight [E,F,D], .c_proj.weight [E,D,F]
//
// The Program has no ranks in it. Annotations (mesh/sharding.h) say how some tensors are spread over a mesh, whatever
// its sizes: the batch over `data` and `expert`, the experts over `expert`, the vocabulary over `tensor`, and the
// weights of each pair of products over `tensor`, the first by rows and the second by columns (Megatron-LM, section 3).
// passes::shard and passes::partition_spmd make each rank's Program of it. Two options are sizes of the mesh, `loads`
// and `vocabulary_shards`. They change what the whole computes, not what a rank sees of it: over which tokens an
// auxiliary loss is taken, and how many rows of padding the vocabulary has and how the terms of its loss are added up.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lancet/config/config.h"
#include "lancet/ir/program.h"

namespace lancet::model {

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
  std::int64_t accumulation = 1;  // micro batches that make one step: the loss is the mean over all of them
  bool inspect = false;           // adds outputs score.h.<i> (the router's), probability., expert., slot., filled.
  bool keep_all = false;          // gates drop nothing in train and evaluate modes either
  bool deterministic = true;      // false: attention gets the attribute of this name, with which kernels for a GPU may
                                  // take a faster backward pass
  // Ranks that split the vocabulary, the size of the mesh's axis `tensor`: V' is a multiple, and with more than one the
  // loss is that of as many blocks of columns (ops/logit_stats), so that no rank needs whole rows of logits.
  std::int64_t vocabulary_shards = 1;
  // What is between the pairs of products is split along the sequence, over `tensor`, in train and evaluate modes.
  bool sequence_parallel = false;
};

// Inputs of the Program: @tokens i32[B,S] and, but for generate and decode, @targets i32[B,S]; for decode, @cursor
// i32[2] (ops/decode). Its state: @h.<i>.attn.keys and .values [B,heads,P,head size], one set for Programs of any S.
// Outputs: logits; or loss f32[1], and per MoE layer aux.h.<i> f32[2] (auxiliary loss, router entropy) and load.h.<i>
// f32[2,E], or f32[2L,E] of L loads. A layer has *model.num_local_experts experts (config::Model::on).
ir::Program build_forward(const config::Model& model, const BuildOptions& options);

// The slots of an expert for a group of tokens, each of which chooses `choices` experts:
// ceil(capacity_factor * choices * tokens / experts), at least 1, at most `tokens`.
std::int64_t capacity(double capacity_factor, std::int64_t tokens, std::int64_t experts, std::int64_t choices = 1);

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
// model: config::Model::on the mesh of the run.
std::vector<Parameter> parameters(const config::Model& model, std::int64_t vocabulary_shards = 1);

struct ParameterCount {
  std::int64_t total = 0;   // of the whole model
  std::int64_t active = 0;  // used by one token
};
ParameterCount count_parameters(const config::Model& model);

}  // namespace lancet::model
