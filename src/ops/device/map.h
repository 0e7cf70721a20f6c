// Element-wise kernels: out[i] = f(in[i]...), over a whole tensor or over the filled rows of experts' buffers.
#pragma once
#include "pack.h"

namespace lancet::ops::device {

// The addresses of the inputs, in a form that a functor can hold: nvcc supports std::tuple only on the host.
template <class T, int N>
struct Inputs {
  const T* at[N];
};

namespace detail {
template <class F, class T>
LANCET_DEVICE float apply(const F& f, const Floats<T> (&x)[1], int i) {
  return f(x[0].v[i]);
}
template <class F, class T>
LANCET_DEVICE float apply(const F& f, const Floats<T> (&x)[2], int i) {
  return f(x[0].v[i], x[1].v[i]);
}
}  // namespace detail

// One pack per thread. Every element is computed by the same instructions, at any position.
template <class T, int N, class F>
struct MapPack {
  T* out;
  Inputs<T, N> in;
  F f;
  bool wide;

  LANCET_DEVICE void operator()(std::int64_t start, Part part) const {
    Floats<T> x[N], y;
#pragma unroll
    for (int n = 0; n < N; ++n) x[n] = to_floats(load(in.at[n] + start, part, wide));
#pragma unroll
    for (int i = 0; i < Pack<T>::size; ++i) y.v[i] = detail::apply(f, x, i);
    store(out + start, from_floats<T>(y), part, wide);
  }
};

// Over a whole tensor. pack(start, part) makes the pack from element `start` on. Bytes: each element of each tensor
// once. A thread has a load of 16 bytes or more in flight and eight blocks fit a multiprocessor, so 32 KB or more are
// in flight per multiprocessor.
template <class T, class P>
struct Map {
  static constexpr int threads = 256, blocks_per_sm = 8;
  P pack;
  std::int64_t n;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t start = (block.index() * threads + block.thread()) * Pack<T>::size;
    if (start < n) pack(start, part_of_row<T>(start, n));
  }
};

// Over the filled rows of [E,R,columns]: expert e has [rows[e,0], rows[e,W]). The launch has blocks for the whole
// buffer; blocks without a filled row end at once. Packs start at multiples of their size, not at row boundaries.
template <class T, class P>
struct MapRows {
  static constexpr int threads = 256, blocks_per_sm = 8;
  P pack;
  const std::int32_t* rows;  // [E, row_width]
  std::int64_t row_width, buffer_rows, columns, blocks_per_expert;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t e = block.index() / blocks_per_expert, chunk = block.index() % blocks_per_expert;
    const std::int64_t begin = (e * buffer_rows + rows[e * row_width]) * columns;
    const std::int64_t end = (e * buffer_rows + rows[e * row_width + row_width - 1]) * columns;
    const std::int64_t first_pack = begin / Pack<T>::size;
    const std::int64_t start = (first_pack + chunk * threads + block.thread()) * Pack<T>::size;
    if (start >= end) return;
    const std::int64_t low = begin - start, high = end - start;
    pack(start, {low > 0 ? int(low) : 0, high < Pack<T>::size ? int(high) : Pack<T>::size});
  }
};

// Runs `pack` over a tensor of this shape. rows: the index of the operand with the filled rows; -1, or absent from the
// instruction: the whole tensor.
template <class T, class P>
Kernel run_packs(const KernelArgs& args, int rows, const Shape& shape, const P& pack) {
  if (rows < 0 || !args.has(rows)) {
    const Map<T, P> kernel{pack, shape.elements()};
    return run_steps(args.stream, Step{divide_up(kernel.n, kernel.threads * Pack<T>::size), kernel});
  }
  const TensorView& filled = args.operands[std::size_t(rows)];
  // One pack more than the rows fill, because rows may start within a pack.
  const std::int64_t packs = divide_up(shape[1] * shape[2], Pack<T>::size) + 1;
  const MapRows<T, P> kernel{
      pack, filled.as<std::int32_t>(), filled.shape()[1], shape[1], shape[2], divide_up(packs, MapRows<T, P>::threads)};
  return run_steps(args.stream, Step{shape[0] * kernel.blocks_per_expert, kernel});
}

// Binds the map of f. `out` may be one of the inputs. rows: as for run_packs.
template <class T, class F, class... In>
Kernel bind_map(const KernelArgs& args, int rows, F f, T* out, const In*... in) {
  constexpr int count = sizeof...(In);
  return run_packs<T>(args, rows, args.operands[0].shape(),
                      MapPack<T, count, F>{out, {{in...}}, f, aligned(out, in...)});
}

// The kernel of an element-wise op f(in... [, rows]), as cpu::map_op.
template <class F, std::size_t inputs>
Kernel map_op(const KernelArgs& args) {
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    return [&]<std::size_t... i>(std::index_sequence<i...>) {
      return bind_map(args, int(inputs), F{}, args.results[0].as<T>(),
                      static_cast<const T*>(args.operands[i].as<T>())...);
    }
    (std::make_index_sequence<inputs>());
  });
}

}  // namespace lancet::ops::device
