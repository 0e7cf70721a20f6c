// Causal multi-head self-attention on packed heads, forward and backward, without an [S, S] tensor in memory.
// Scores are scaled by 1 / sqrt(hd).
//   qkv   [B, S, 3, H, hd]   the output of GPT-2's c_attn: q, then k, then v along the feature axis
//   out   [B, S, H * hd]
//   lse   [B, H, S] f32      log of the sum of exponentials of each query's scaled scores, kept for backward
// f32 or bf16 (qkv, out and their gradients); scores, softmax and sums are f32. A sequence's results depend neither on
// the batch around it nor on the number of threads, bit for bit.
#pragma once
#include <cstddef>
#include <cstdint>

#include "lancet/base/dtype.h"

namespace lancet::backend::cpu {

struct AttentionDesc {
  std::int64_t batch = 0, sequence = 0, heads = 0, head_dim = 0;
  DType dtype = DType::f32;
};

// Bytes of scratch memory for one call that runs on `threads` threads; independent of the batch.
std::size_t attention_forward_workspace_bytes(const AttentionDesc& desc, int threads);
std::size_t attention_backward_workspace_bytes(const AttentionDesc& desc, int threads);

// workspace: 64-byte aligned, of the size given above for the caller's threads (parallel.h).
void attention_forward(const AttentionDesc& desc, const void* qkv, void* out, float* lse, void* workspace);
void attention_backward(const AttentionDesc& desc, const void* dout, const void* qkv, const void* out, const float* lse,
                        void* dqkv, void* workspace);

}  // namespace lancet::backend::cpu
