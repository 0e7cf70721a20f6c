// Causal multi-head self-attention on packed heads by cuDNN: bf16, scores scaled by 1 / sqrt(head_dim).
// Each head of keys and values is read by a group of neighbouring heads of queries.
//   qkv   [batch, sequence, (group + 1 + 1) * heads * head_dim]
//   out   [batch, sequence, group * heads * head_dim]
//   lse   [batch, group * heads, sequence] f32    log of the sum of exponentials of each query's scaled scores
// A part of the positions (desc.part) has the queries of qkv and the keys and values of `all`, of which the last are at
// its own positions. Backward it leaves the gradients of these in dkeys [batch, keys, 2 * heads * head_dim], keys
// before values, and dqkv gets those of the queries alone. The backward pass repeats bit for bit if the description
// says so, or if cuDNN has no engine for the other way. Plans are made once per shape and device, and kept.
//
// Threading: one thread at a time runs an Attention. Errors: cuDNN has no engine for the shape (with the reason), or
// the build has no cuDNN.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lancet/backend/cuda/attention_desc.h"
#include "lancet/backend/device.h"
#include "lancet/base/result.h"

namespace lancet::backend::cuda {

// The forward pass writes out and lse; the backward pass reads them. dout and dqkv (shaped like out and qkv) are for
// the backward pass only.
struct AttentionTensors {
  const void *qkv = nullptr, *all = nullptr, *dout = nullptr;  // all: qkv, unless it is of a part
  void *out = nullptr, *dqkv = nullptr, *dkeys = nullptr;
  float* lse = nullptr;
};

class Attention {
 public:
  virtual ~Attention() = default;
  virtual std::size_t workspace_bytes() const = 0;
  // Tensors and workspace are aligned to 16 bytes.
  virtual Status run(Stream& stream, const AttentionTensors& tensors, std::byte* workspace) = 0;
};

Result<std::unique_ptr<Attention>> make_attention(const AttentionDesc& desc);  // for the device of the calling thread

}  // namespace lancet::backend::cuda
