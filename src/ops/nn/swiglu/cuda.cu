#include "math.h"
#include "ops/device/map.h"

namespace lancet::ops {
namespace {

using namespace device;

// The two packs of gate and up beside a pack of features, and which of their elements are those of `part`.
template <class T>
struct Pairs {
  static constexpr int size = Pack<T>::size;

  LANCET_DEVICE static Part half(Part part, int k) { return {clamped(2 * part.first, k), clamped(2 * part.last, k)}; }
  LANCET_DEVICE static int clamped(int at, int k) {
    const int i = at - k * size;
    return i < 0 ? 0 : (i > size ? size : i);
  }
};

template <class T>
struct SwigluPack {
  const T* x;
  T* y;
  bool wide;

  LANCET_DEVICE void operator()(std::int64_t start, Part part) const {
    constexpr int half = Pack<T>::size / 2;
    Floats<T> made;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const Floats<T> in = to_floats(load(x + 2 * start + k * Pack<T>::size, Pairs<T>::half(part, k), wide));
#pragma unroll
      for (int i = 0; i < half; ++i) made.v[k * half + i] = swiglu(in.v[2 * i], in.v[2 * i + 1]);
    }
    store(y + start, from_floats<T>(made), part, wide);
  }
};

template <class T>
struct SwigluDxPack {
  const T *dy, *x;
  T* dx;
  bool wide;

  LANCET_DEVICE void operator()(std::int64_t start, Part part) const {
    constexpr int half = Pack<T>::size / 2;
    const Floats<T> g = to_floats(load(dy + start, part, wide));
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const std::int64_t at = 2 * start + k * Pack<T>::size;
      const Part of_pair = Pairs<T>::half(part, k);
      const Floats<T> in = to_floats(load(x + at, of_pair, wide));
      Floats<T> made;
#pragma unroll
      for (int i = 0; i < half; ++i) {
        const float gradient = g.v[k * half + i], gate = in.v[2 * i], up = in.v[2 * i + 1];
        made.v[2 * i] = swiglu_dgate(gradient, gate, up);
        made.v[2 * i + 1] = swiglu_dup(gradient, gate);
      }
      store(dx + at, from_floats<T>(made), of_pair, wide);
    }
  }
};

Kernel bind_swiglu(const KernelArgs& args) {
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    const T* x = args.operands[0].as<T>();
    T* y = args.results[0].as<T>();
    return run_packs<T>(args, 1, args.results[0].shape(), SwigluPack<T>{x, y, aligned(x, y)});
  });
}

Kernel bind_swiglu_dx(const KernelArgs& args) {
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    const T *dy = args.operands[0].as<T>(), *x = args.operands[1].as<T>();
    T* dx = args.results[0].as<T>();
    return run_packs<T>(args, 2, args.operands[0].shape(), SwigluDxPack<T>{dy, x, dx, aligned(dy, x, dx)});
  });
}

}  // namespace

std::span<const DeviceKernel> swiglu_cuda() {
  static const DeviceKernel table[] = {{"swiglu", bind_swiglu}, {"swiglu_dx", bind_swiglu_dx}};
  return table;
}

}  // namespace lancet::ops
