// Causal attention as an operation graph that cuDNN's fused engines support, in composite form (cuDNN's one-operation
// form has no causal mask before 9.21).
#pragma once
#include "cudnn_graph.h"
#include "lancet/backend/cuda/attention_desc.h"

namespace lancet::backend::cuda {

enum AttentionTensor : std::int64_t {
  id_q = 1,
  id_k,
  id_v,
  id_out,
  id_lse,
  id_dout,
  id_dq,
  id_dk,
  id_dv,
  id_row_sums,  // of dout * out, f32 [batch, group * heads, sequence], scratch of the backward pass
  id_dq_sums,   // f32, scratch of the backward pass that is not deterministic, zeros at its start
  id_scale,     // 1 / sqrt(head_dim)
  id_masked,    // the value of masked scores: -infinity
  id_one,
  id_before  // i32: positions before those of a part
};

CudnnGraph attention_graph(const AttentionDesc& desc);

}  // namespace lancet::backend::cuda
