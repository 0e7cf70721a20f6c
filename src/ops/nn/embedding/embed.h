// x[t] = wte[tokens[t]] + wpe[position of t], or without wpe, for sequences that start at a position, which may be in
// device memory. A rank that has a share of wte's rows takes zeros for the tokens of other rows.
#pragma once
#include "ops/device/slot_rows.h"

namespace lancet::ops::device {

// One warp per token. Bytes: x once, and as many of wte; wpe stays in the cache. A token outside of the vocabulary, or
// a first position outside of wpe, gives a row of NaN, which the loss shows. wte has the rows of the `rows` tokens from
// first_token on.
template <class T>
struct Embed {
  static constexpr int threads = 256;
  const std::int32_t* tokens;
  const T *wte, *wpe;  // wpe: may be null
  T* x;
  std::int64_t count, sequence, rows, first_token, vocabulary, positions, d;
  const std::int32_t* first;  // position of a sequence's first token; null: before
  std::int64_t before;
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t t = block.index() * Block::warps() + block.warp();
    if (t >= count) return;
    const std::int64_t id = tokens[t], own = id - first_token;
    const std::int64_t start_at = first ? *first : before, position = start_at + t % sequence;
    const bool known = id >= 0 && id < vocabulary && (!wpe || (start_at >= 0 && start_at < positions));
    for_row<T>(block, d, [&](std::int64_t start, Part part) {
      Floats<T> a = {};
      if (known) {
        const std::int64_t row = position < positions ? position : positions - 1;
        if (own >= 0 && own < rows) a = to_floats(load(wte + own * d + start, part, wide));
        if (wpe) {
          const Floats<T> b = to_floats(load(wpe + row * d + start, part, wide));
#pragma unroll
          for (int i = 0; i < Pack<T>::size; ++i) a.v[i] += b.v[i];
        }
      } else {
#pragma unroll
        for (int i = 0; i < Pack<T>::size; ++i) a.v[i] = __builtin_nanf("");
      }
      store(x + t * d + start, from_floats<T>(a), part, wide);
    });
  }
};

// args: tokens [B,S], wte [V,D] [, wpe [P,D]] -> x [B,S,D]
template <class T>
Kernel embed(const KernelArgs& args, const std::int32_t* first) {
  const TensorView& tokens = args.operands[0];
  const Shape& wte_shape = args.operands[1].shape();
  const T *wte = args.operands[1].as<T>(), *wpe = args.has(2) ? args.operands[2].as<T>() : nullptr;
  T* x = args.results[0].as<T>();
  const Share share = args.share();
  const Embed<T> kernel{tokens.as<std::int32_t>(),
                        wte,
                        wpe,
                        x,
                        tokens.elements(),
                        tokens.shape()[1],
                        wte_shape[0],
                        wte_shape[0] * share.place,
                        wte_shape[0] * share.shares,
                        wpe ? args.operands[2].shape()[0] : 0,
                        wte_shape[1],
                        first,
                        args.attributes.integer("before", 0),
                        aligned_rows<T>(wte_shape[1]) && aligned(wte, wpe, x)};
  return run_steps(args.stream, Step{divide_up(kernel.count, Embed<T>::threads / warp_size), kernel});
}

}  // namespace lancet::ops::device
