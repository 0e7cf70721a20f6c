// Causal multi-head self-attention on packed heads, forward and backward, without an [S, S] tensor in memory.
// Scores are scaled by 1 / sqrt(hd). Each of H heads of keys and values is read by a group of G heads of queries
// (grouped queries; Ainslie et al., GQA, 2023): head h of queries reads the keys of head h / G.
//   qkv   [B, S, (G + 1 + 1) * H * hd]   q of all heads, then k, then v along the feature axis
//   out   [B, S, G * H * hd]
//   lse   [B, G * H, S] f32              log of the sum of exponentials of a query's scaled scores, kept for backward
// A part of the positions has the queries of `qkv` and the keys and values of `all` [B, before + S, ...], which are
// those before its own and its own. Backward, the gradients of all these keys, then values, are added onto the sums:
//   sums  [B, before + S, 2 * H * hd] f32
// Those of the part's own positions are complete if the parts behind it have been added, and are written to dqkv, too.
//
// f32 or bf16 (qkv, out and their gradients); scores, softmax and sums are f32. A sequence's results depend neither on
// the batch around it nor on the number of threads, bit for bit.
#pragma once
#include <cstddef>
#include <cstdint>

#include "lancet/base/dtype.h"

namespace lancet::backend::cpu {

struct AttentionDesc {
  std::int64_t batch = 0, sequence = 0, heads = 0, head_dim = 0;  // heads: of keys
  DType dtype = DType::f32;
  std::int64_t group = 1;
  std::int64_t before = 0;  // positions whose keys and values come before those of the queries'
};

// Bytes of scratch memory for one call that runs on `threads` threads; independent of the batch.
std::size_t attention_forward_workspace_bytes(const AttentionDesc& desc, int threads);
std::size_t attention_backward_workspace_bytes(const AttentionDesc& desc, int threads);

// workspace: 64-byte aligned, of the size given above for the caller's threads (parallel.h).
// all: qkv itself if these are all positions; sums: then null. add: onto what the sums hold, else onto zero.
void attention_forward(const AttentionDesc& desc, const void* qkv, const void* all, void* out, float* lse,
                       void* workspace);
void attention_backward(const AttentionDesc& desc, const void* dout, const void* qkv, const void* all, const void* out,
                        const float* lse, void* dqkv, float* sums, bool add, void* workspace);

}  // namespace lancet::backend::cpu
