#if defined(LANCET_HAVE_CUDNN)  // the CUDA plugin is built without cuDNN too
// Builds the operation graphs of causal attention:
//   forward    scores = masked(q k^T * scale), p = softmax(scores), lse = max + log(sum of exponentials), out = p v
//   backward   p = exp(masked(q k^T * scale - lse)), dv = p^T dout,
//              ds = p * (dout v^T - row sums of dout * out) * scale, dk = ds^T q, dq = ds k
#include "attention_graph.h"

namespace lancet::backend::cuda {
namespace {

constexpr cudnnDataType_t bf16_type = CUDNN_DATA_BFLOAT16, f32_type = CUDNN_DATA_FLOAT;

struct Shapes {
  explicit Shapes(const AttentionDesc& d)
      : heads{d.batch, d.group * d.heads, d.sequence, d.head_dim},
        keys{d.batch, d.heads, d.keys(), d.head_dim},
        key_heads{d.batch, heads[1], d.keys(), d.head_dim},
        turned{d.batch, d.heads, d.head_dim, d.keys()},
        scores{d.batch, heads[1], d.sequence, d.keys()},
        scores_turned{d.batch, heads[1], d.keys(), d.sequence},
        rows{d.batch, heads[1], d.sequence, 1},
        packed{d.sequence * row_of(d), d.head_dim, row_of(d), 1},
        packed_keys{d.keys() * row_of(d), d.head_dim, row_of(d), 1},
        packed_turned{packed_keys[0], packed[1], packed[3], packed[2]},
        dkeys{d.keys() * 2 * d.heads * d.head_dim, d.head_dim, 2 * d.heads * d.head_dim, 1},
        plain{d.sequence * heads[1] * d.head_dim, d.head_dim, heads[1] * d.head_dim, 1},
        turned_scores{heads[1] * d.sequence * d.keys(), d.sequence * d.keys(), 1, d.keys()},
        before(d.before) {
    if (!d.part) dkeys = packed;
  }
  // Extents: [B, G * H, S, hd], [B, H, T, hd] and so on.
  Extents heads, keys, key_heads, turned, scores, scores_turned, rows;
  // Strides: in qkv, in `all`, in the gradients of keys, in out, and of scores that are read transposed.
  Extents packed, packed_keys, packed_turned, dkeys, plain, turned_scores;
  std::int64_t before;

 private:
  static std::int64_t row_of(const AttentionDesc& d) { return (d.group + 2) * d.heads * d.head_dim; }  // of qkv
};

// before + row >= column ? scores : -infinity
GraphTensor mask(CudnnGraph& g, const Shapes& s, const GraphTensor& scores) {
  const GraphTensor row = g.between(s.scores, CUDNN_DATA_INT32), column = g.between(s.scores, CUDNN_DATA_INT32);
  const GraphTensor allowed = g.between(s.scores, CUDNN_DATA_BOOLEAN), masked = g.between(s.scores);
  const GraphTensor infinity = g.scalar(id_masked);
  g.index(scores, 2, row);
  g.index(scores, 3, column);
  GraphTensor position = row;
  if (s.before > 0) {
    position = g.between(s.scores, CUDNN_DATA_INT32);
    g.binary(CUDNN_POINTWISE_ADD, row, g.scalar(id_before, CUDNN_DATA_INT32), position, CUDNN_DATA_INT32);
  }
  g.binary(CUDNN_POINTWISE_CMP_GE, position, column, allowed, CUDNN_DATA_BOOLEAN);
  g.select(scores, infinity, allowed, masked);
  return masked;
}

// q k^T * scale; k is read transposed, by its strides.
GraphTensor scaled_scores(CudnnGraph& g, const Shapes& s, const GraphTensor& q, const GraphTensor& k_turned,
                          const GraphTensor& scale) {
  const GraphTensor raw = g.between(s.scores), scaled = g.between(s.scores);
  g.matmul(q, k_turned, raw);
  g.binary(CUDNN_POINTWISE_MUL, raw, scale, scaled);
  return scaled;
}

CudnnGraph forward(const Shapes& s) {
  CudnnGraph g;
  const GraphTensor q = g.tensor(id_q, s.heads, s.packed, bf16_type);
  const GraphTensor k_turned = g.tensor(id_k, s.turned, s.packed_turned, bf16_type);
  const GraphTensor v = g.tensor(id_v, s.keys, s.packed_keys, bf16_type);
  const GraphTensor out = g.tensor(id_out, s.heads, s.plain, bf16_type);
  const GraphTensor lse = g.tensor(id_lse, s.rows, dense_strides(s.rows), f32_type);
  const GraphTensor scores = mask(g, s, scaled_scores(g, s, q, k_turned, g.scalar(id_scale)));
  const GraphTensor most = g.between(s.rows), shifted = g.between(s.scores), powers = g.between(s.scores);
  const GraphTensor sum = g.between(s.rows), log = g.between(s.rows), share = g.between(s.scores, bf16_type);
  g.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, most);
  g.binary(CUDNN_POINTWISE_SUB, scores, most, shifted);
  g.unary(CUDNN_POINTWISE_EXP, shifted, powers);
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, powers, sum);
  g.unary(CUDNN_POINTWISE_LOG, sum, log);
  g.binary(CUDNN_POINTWISE_ADD, most, log, lse);
  g.binary(CUDNN_POINTWISE_DIV, powers, sum, share);
  g.matmul(share, v, out);
  return g;
}

// The gradient of keys or values: a product with [B, G * H, S, hd] to [B, G * H, T, hd], whose groups of G heads are
// summed where G > 1. The engines hold what they sum in bf16.
void group_gradient(CudnnGraph& g, const Shapes& s, const GraphTensor& a, const GraphTensor& b,
                    const GraphTensor& gradient) {
  if (s.key_heads == s.keys) return g.matmul(a, b, gradient);
  const GraphTensor of_queries = g.between(s.key_heads, bf16_type);
  g.matmul(a, b, of_queries);
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, of_queries, gradient);
}

// Deterministic: dq is the result of one product and not a sum of parts, so its bits are the same in every run; cuDNN
// keeps the gradients of all scores for it. Otherwise blocks add their parts to dq_sums in the order in which they end.
// Its elements lie as the engines' threads hold them (F16x16), and its presence selects these engines.
CudnnGraph backward(const Shapes& s, bool deterministic) {
  CudnnGraph g;
  const GraphTensor q = g.tensor(id_q, s.heads, s.packed, bf16_type);
  const GraphTensor k_turned = g.tensor(id_k, s.turned, s.packed_turned, bf16_type);
  const GraphTensor v_turned = g.tensor(id_v, s.turned, s.packed_turned, bf16_type);
  const GraphTensor out = g.tensor(id_out, s.heads, s.plain, bf16_type);
  const GraphTensor dout = g.tensor(id_dout, s.heads, s.plain, bf16_type);
  const GraphTensor dq = g.tensor(id_dq, s.heads, s.packed, bf16_type);
  const GraphTensor dk = g.tensor(id_dk, s.keys, s.dkeys, bf16_type);
  const GraphTensor dv = g.tensor(id_dv, s.keys, s.dkeys, bf16_type);
  const GraphTensor lse = g.tensor(id_lse, s.rows, dense_strides(s.rows), f32_type);
  const GraphTensor row_sums = g.tensor(id_row_sums, s.rows, dense_strides(s.rows), f32_type);
  const GraphTensor scale = g.scalar(id_scale), one = g.scalar(id_one);

  const GraphTensor products = g.between(s.heads, s.plain), sums = g.between(s.rows);
  g.binary(CUDNN_POINTWISE_MUL, dout, out, products);
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, products, sums);
  g.binary(CUDNN_POINTWISE_MUL, sums, one, row_sums);

  const GraphTensor shifted = g.between(s.scores), share = g.between(s.scores);
  g.binary(CUDNN_POINTWISE_SUB, scaled_scores(g, s, q, k_turned, scale), lse, shifted);
  g.unary(CUDNN_POINTWISE_EXP, mask(g, s, shifted), share);
  const GraphTensor share_turned = g.between(s.scores_turned, s.turned_scores, bf16_type);
  g.reshape(share, share_turned);
  group_gradient(g, s, share_turned, dout, dv);

  const GraphTensor dshare = g.between(s.scores), centered = g.between(s.scores), weighted = g.between(s.scores);
  const GraphTensor dscores = g.between(s.scores, bf16_type);
  g.matmul(dout, v_turned, dshare);
  g.binary(CUDNN_POINTWISE_SUB, dshare, row_sums, centered);
  g.binary(CUDNN_POINTWISE_MUL, centered, share, weighted);
  g.binary(CUDNN_POINTWISE_MUL, weighted, scale, dscores);
  const GraphTensor dscores_turned = g.between(s.scores_turned, s.turned_scores, bf16_type);
  g.reshape(dscores, dscores_turned);
  group_gradient(g, s, dscores_turned, q, dk);
  const GraphTensor k = g.between(s.keys, s.packed_keys, bf16_type);
  g.reshape(k_turned, k);
  if (deterministic) {
    g.matmul(dscores, k, dq);
  } else {
    const GraphTensor sums_of_dq =
        g.tensor(id_dq_sums, s.heads, dense_strides(s.heads), f32_type, CUDNN_TENSOR_REORDERING_F16x16);
    g.matmul(dscores, k, sums_of_dq);
    g.unary(CUDNN_POINTWISE_IDENTITY, sums_of_dq, dq);
  }
  return g;
}

}  // namespace

CudnnGraph attention_graph(const AttentionDesc& desc) {
  const Shapes shapes(desc);
  return desc.backward ? backward(shapes, desc.deterministic) : forward(shapes);
}

}  // namespace lancet::backend::cuda

#endif
