#include "math.h"
#include "ops/device/pack.h"

namespace lancet::ops {
namespace {

using namespace device;

// A warp takes a row, a pack each thread at a time. Bytes: x and y once each.
template <class T>
struct GateRows {
  static constexpr int threads = 256, step = warp_size * Pack<T>::size;
  const T *x, *gate;
  T* y;
  std::int64_t rows, d;
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t r = block.index() * (threads / warp_size) + block.warp();
    if (r >= rows) return;
    const float s = sigmoid(to_f32(gate[r]));
    for (std::int64_t at = std::int64_t(block.warp_lane()) * Pack<T>::size; at < d; at += step) {
      const Part part = part_of_row<T>(at, d);
      Floats<T> v = to_floats(load(x + r * d + at, part, wide));
#pragma unroll
      for (int i = 0; i < Pack<T>::size; ++i) v.v[i] *= s;
      store(y + r * d + at, from_floats<T>(v), part, wide);
    }
  }
};

// Likewise. Bytes: dy and x once each.
template <class T>
struct GateRowsDgate {
  static constexpr int threads = 256, step = warp_size * Pack<T>::size;
  const T *dy, *x, *gate;
  T* dgate;
  std::int64_t rows, d;
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t r = block.index() * (threads / warp_size) + block.warp();
    if (r >= rows) return;
    float dot = 0;
    for (std::int64_t at = std::int64_t(block.warp_lane()) * Pack<T>::size; at < d; at += step) {
      const Part part = part_of_row<T>(at, d);
      const Floats<T> g = to_floats(load(dy + r * d + at, part, wide)), v = to_floats(load(x + r * d + at, part, wide));
#pragma unroll
      for (int i = 0; i < Pack<T>::size; ++i) dot += g.v[i] * v.v[i];
    }
    dot = block.warp_sum(dot);
    const float s = sigmoid(to_f32(gate[r]));
    if (block.warp_lane() == 0) dgate[r] = from_f32<T>(dot * s * (1.f - s));
  }
};

template <class K>
Kernel over_gated_rows(const KernelArgs& args, const K& kernel) {
  return run_steps(args.stream, Step{divide_up(kernel.rows, K::threads / warp_size), kernel});
}

Kernel bind_sigmoid_gate(const KernelArgs& args) {
  const Shape& shape = args.operands[0].shape();
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    const T* x = args.operands[0].as<T>();
    T* y = args.results[0].as<T>();
    return over_gated_rows(args, GateRows<T>{x, args.operands[1].as<T>(), y, shape.rows(), shape.back(),
                                             aligned_rows<T>(shape.back()) && aligned(x, y)});
  });
}

Kernel bind_dgate(const KernelArgs& args) {
  const Shape& shape = args.operands[0].shape();
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    const T *dy = args.operands[0].as<T>(), *x = args.operands[1].as<T>();
    return over_gated_rows(
        args, GateRowsDgate<T>{dy, x, args.operands[2].as<T>(), args.results[0].as<T>(), shape.rows(), shape.back(),
                               aligned_rows<T>(shape.back()) && aligned(dy, x)});
  });
}

}  // namespace

std::span<const DeviceKernel> sigmoid_gate_cuda() {
  static const DeviceKernel table[] = {{"sigmoid_gate", bind_sigmoid_gate}, {"sigmoid_gate_dgate", bind_dgate}};
  return table;
}

}  // namespace lancet::ops
