#include "ops/device/slot_rows.h"

namespace lancet::ops {
namespace {

using namespace device;

template <class T>
LANCET_DEVICE Pack<T> scaled(const Pack<T>& pack, float factor) {
  Floats<T> f = to_floats(pack);
#pragma unroll
  for (int i = 0; i < Pack<T>::size; ++i) f.v[i] *= factor;
  return from_floats<T>(f);
}

// y of the tokens, one warp each. Bytes: the kept choices' slots and all of y once.
template <class T>
struct Combine {
  static constexpr int threads = TokenRows::threads;
  TokenRows rows;
  const float* weights;  // [T, K]
  const T* slots;
  T* y;
  std::int64_t width;
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t t = rows.token(block);
    if (t >= rows.at.tokens) return;
    const float* weight = weights + t * rows.at.choices;
    sum_rows(block, rows.at, t, slots, y + t * width, width, wide, [=](std::int64_t k) { return weight[k]; });
  }
};

// One pass multiplies the slots with dy (dweight) and overwrites them with their gradients. Bytes: dy once, the kept
// choices' slots twice.
template <class T>
struct CombineDx {
  static constexpr int threads = TokenRows::threads;
  TokenRows rows;
  const float* weights;  // [T, K]
  const T* dy;
  T* slots;
  float* dweight;  // [T, K]
  std::int64_t width;
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t t = rows.token(block);
    if (t >= rows.at.tokens) return;
    for (std::int64_t k = 0; k < rows.at.choices; ++k) one(block, t, k);
  }

  // The k-th choice of token t.
  template <class Block>
  LANCET_DEVICE void one(Block& block, std::int64_t t, std::int64_t k) const {
    const std::int64_t row = rows.at.row(t, k), i = t * rows.at.choices + k;
    if (row < 0) {  // of the whole warp; where experts choose, nearly all choices
      if (block.warp_lane() == 0) dweight[i] = 0;
      return;
    }
    float dot = 0;
    const float weight = weights[i];
    for_row<T>(block, width, [&](std::int64_t start, Part part) {
      const Pack<T> g = load(dy + t * width + start, part, wide);
      T* slot = slots + row * width + start;
      const Floats<T> a = to_floats(g), b = to_floats(load(static_cast<const T*>(slot), part, wide));
#pragma unroll
      for (int j = 0; j < Pack<T>::size; ++j) dot += a.v[j] * b.v[j];  // zeros beyond the row
      store(slot, scaled(g, weight), part, wide);
    });
    dot = block.warp_sum(dot);
    if (block.warp_lane() == 0) dweight[i] = dot;
  }
};

Kernel bind_combine(const KernelArgs& args) {
  const TokenRows rows(args.operands[1], args.operands[2], args.operands[0], args.share());
  const float* weights = args.operands[3].as<float>();
  return by_dtype(args.results[0].dtype(), [&]<class T>(T) {
    const T* slots = args.operands[0].as<T>();
    T* y = args.results[0].as<T>();
    const std::int64_t width = args.operands[0].shape().back();
    return run_steps(args.stream, Step{rows.blocks(), Combine<T>{rows, weights, slots, y, width,
                                                                 aligned_rows<T>(width) && aligned(slots, y)}});
  });
}

Kernel bind_combine_dx(const KernelArgs& args) {
  const TokenRows rows(args.operands[2], args.operands[3], args.results[0], args.share());
  const float* weights = args.operands[4].as<float>();
  return by_dtype(args.results[0].dtype(), [&]<class T>(T) {
    const T* dy = args.operands[0].as<T>();
    T* slots = args.results[0].as<T>();
    const std::int64_t width = args.operands[0].shape().back();
    return run_steps(args.stream,
                     Step{rows.blocks(), CombineDx<T>{rows, weights, dy, slots, args.results[1].as<float>(), width,
                                                      aligned_rows<T>(width) && aligned(dy, slots)}});
  });
}

}  // namespace

std::span<const DeviceKernel> combine_cuda() {
  static const DeviceKernel table[] = {{"combine", bind_combine}, {"combine_dx", bind_combine_dx}};
  return table;
}

}  // namespace lancet::ops
