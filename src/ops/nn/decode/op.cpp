// Ops for a forward pass over the next few positions of a sequence (decoding), in addition to the ops that work row by
// row. The keys and values of earlier positions are kept from call to call (the KV cache).
//   cursor   i32[2]: the position of the first row, and the index of the last valid row; the rows after it are filler
//   keys, values [B,H,P,hd]: the cache of all positions, by head, so that a head reads one contiguous range of memory
#include "ops/describe.h"

namespace lancet::ops {
namespace {

bool is_cursor(const TensorType& type) { return type == TensorType{DType::i32, {2}}; }

// embedding_at(tokens i32[B,S], wte, wpe, cursor) -> x[b,s] = wte[tokens[b,s]] + wpe[cursor[0] + s]. Filler rows beyond
// the last position use the last row of wpe. wte may be split by rows over ranks, as that of embedding.
Inferred infer_embedding(const OpInput& in) {
  const TensorType &tokens = in.operands[0], &wte = in.operands[1], &wpe = in.operands[2];
  if (tokens.dtype != DType::i32 || tokens.shape.rank() != 2) return expected("tokens i32[B,S]");
  if (!is_activation(wte.dtype) || wte.shape.rank() != 2) return expected("wte [V,D] of f32 or bf16");
  if (wpe.dtype != wte.dtype || wpe.shape.rank() != 2 || wpe.shape[1] != wte.shape[1])
    return expected("wpe [P,D] like wte");
  if (!is_cursor(in.operands[3])) return expected("cursor i32[2]");
  return Types{{wte.dtype, {tokens.shape[0], tokens.shape[1], wte.shape[1]}}};
}

Work work_embedding(const OpInput& in) {
  const double elements = double(in.operands[0].shape.elements()) * double(in.operands[1].shape[1]);
  return {elements, 3 * elements * size_of(in.operands[1].dtype)};
}

// attention_decode(qkv [B,S,3D], &keys, &values, cursor) -> out [B,S,D]: stores the keys and values of the rows in the
// cache; then row s attends to the positions up to its own. Filler rows store nothing, and their results are zeros.
Inferred infer_attention(const OpInput& in) {
  const TensorType &qkv = in.operands[0], &keys = in.operands[1];
  const std::int64_t heads = in.attributes.integer("heads");
  if (!is_activation(qkv.dtype) || qkv.shape.rank() != 3 || heads < 1 || qkv.shape[2] % (3 * heads))
    return expected("qkv [B,S,3*heads*head size] of f32 or bf16");
  const std::int64_t head_dim = qkv.shape[2] / (3 * heads);
  if (keys.dtype != qkv.dtype || keys.shape.rank() != 4 ||
      keys.shape != Shape{qkv.shape[0], heads, keys.shape[2], head_dim})
    return expected("keys [B,heads,P,head size] of qkv's type");
  if (in.operands[2] != keys) return expected("values like keys");
  if (!is_cursor(in.operands[3])) return expected("cursor i32[2]");
  return Types{{qkv.dtype, with_back(qkv.shape, qkv.shape[2] / 3)}};
}

// The work with a full cache, where each row attends to every position.
Work work_attention(const OpInput& in) {
  const double positions = double(in.operands[1].shape[2]);
  return {4 * double(in.operands[0].shape.elements()) / 3 * positions, bytes_of(in)};
}

// take_row(x [B,S,D], cursor) -> x[:, cursor[1], :] as [B,1,D]: only the last valid row needs logits.
Inferred infer_row(const OpInput& in) {
  const TensorType& x = in.operands[0];
  if (!is_activation(x.dtype) || x.shape.rank() != 3) return expected("x [B,S,D] of f32 or bf16");
  if (!is_cursor(in.operands[1])) return expected("cursor i32[2]");
  return Types{{x.dtype, {x.shape[0], 1, x.shape[2]}}};
}

Work work_row(const OpInput& in) {
  const Shape& x = in.operands[0].shape;
  return {0, 2.0 * double(x[0] * x[2]) * size_of(in.operands[0].dtype)};
}

// Fill::tokens fills `cursor`, so both of its numbers are below `vocabulary`.
std::vector<Sample> attention_samples() {
  auto sample = [](DType t, std::int64_t batch, std::int64_t rows, std::int64_t heads, std::int64_t positions,
                   std::int64_t head_dim) {
    const TensorType cache{t, {batch, heads, positions, head_dim}};
    return Sample{{{{t, {batch, rows, 3 * heads * head_dim}}}, {cache}, {cache}, i32({2}, Fill::tokens)},
                  {{"heads", heads}, {"vocabulary", std::min(rows, positions - rows + 1)}}};
  };
  return {sample(DType::f32, 1, 1, 2, 9, 8), sample(DType::f32, 2, 5, 3, 11, 7), sample(DType::f32, 1, 64, 2, 130, 64),
          sample(DType::bf16, 1, 4, 2, 40, 80), sample(DType::bf16, 2, 1, 1, 6, 16)};
}

const OpDef table[] = {
    {.name = "embedding_at",
     .required = 4,
     .infer = infer_embedding,
     .work = work_embedding,
     .partition = {{{none, 0, once, none}, {partial}, SplitIn::space, {}, true}},
     .samples =
         {{{i32({2, 5}, Fill::tokens), f32({11, 24}), f32({12, 24}), i32({2}, Fill::tokens)}, {{"vocabulary", 11}}},
          {{i32({2, 3}, Fill::tokens), f32({12, 20}), f32({12, 20}), i32({2}, Fill::tokens)}, {{"vocabulary", 12}}},
          {{i32({1, 1}, Fill::tokens), bf16({5, 17}), bf16({5, 17}), i32({2}, Fill::tokens)}, {{"vocabulary", 5}}}}},
    {.name = "attention_decode",
     .required = 4,
     .infer = infer_attention,
     .work = work_attention,
     .writes = {1, 2},
     .partition = {{{packed, 1, 1, none}, {last}, SplitIn::space, {"heads"}}},
     .samples = attention_samples()},
    {.name = "take_row",
     .required = 2,
     .infer = infer_row,
     .work = work_row,
     .samples = {{{f32({2, 5, 24}), i32({2}, Fill::tokens)}, {{"vocabulary", 5}}},
                 {{bf16({1, 3, 17}), i32({2}, Fill::tokens)}, {{"vocabulary", 3}}}}},
};

}  // namespace

std::span<const OpDef> decode_ops() { return table; }

}  // namespace lancet::ops
