// What a forward Program of a model depends on besides the config, and what it does not say of its parameters.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "lancet/base/dtype.h"
#include "lancet/base/shape.h"

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
  std::int64_t cache = 0;     // of decode: positions whose keys and values are kept (C); 0: the model's n_positions
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
  // the loss is that of as many blocks of columns (ops/nn/logit_stats), so that no rank needs whole rows of logits.
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

}  // namespace lancet::model
