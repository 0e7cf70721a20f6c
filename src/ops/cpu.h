// Loops that the CPU kernels share. Every element of a result is computed by the same instructions in the same order,
// independent of the position of its row, the number of rows and the number of threads. The results of the parts of a
// batch are therefore those of the whole batch, bit for bit.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#include "lancet/backend/cpu/parallel.h"
#include "lancet/base/check.h"
#include "lancet/base/dtype.h"
#include "lancet/ops/kernel.h"

namespace lancet::ops::cpu {

using backend::cpu::parallel_for;

// Calls f(T{}) with the element type T of an activation.
template <class F>
Kernel by_dtype(DType dtype, F&& f) {
  LANCET_CHECK(dtype == DType::f32 || dtype == DType::bf16, "a kernel of f32 or bf16, found {}", name(dtype));
  return dtype == DType::bf16 ? f(bf16{}) : f(float{});
}

// Elements per block of a loop: whole vectors on every machine, and enough of them to hide the latency of an addition.
inline constexpr std::int64_t block = 64;
// Elements from which a second thread pays (waking one costs a few microseconds).
inline constexpr std::int64_t grain_elements = 8192;

inline std::int64_t row_grain(std::int64_t columns) {
  return std::max<std::int64_t>(1, grain_elements / std::max<std::int64_t>(1, columns));
}

namespace detail {

// Rounds a block that is aligned to 64 bytes. The instruction flushes denormals to zero; otherwise it equals from_f32.
LANCET_HD void round_block(bf16* out, const float* y) {
#if defined(__AVX512BF16__)
  for (std::int64_t j = 0; j < block; j += 16) {
    const auto rounded = _mm512_cvtneps_pbh(_mm512_load_ps(y + j));
    memcpy(out + j, &rounded, 32);
  }
#else
#pragma omp simd
  for (std::int64_t j = 0; j < block; ++j) out[j] = from_f32<bf16>(y[j]);
#endif
}

template <class Out, class F, class... In>
LANCET_HD void map_block(Out* out, F f, const In*... in) {
  if constexpr (std::is_same_v<Out, float>) {
#pragma omp simd
    for (std::int64_t j = 0; j < block; ++j) out[j] = f(to_f32(in[j])...);
  } else {
    alignas(64) float y[block];
#pragma omp simd
    for (std::int64_t j = 0; j < block; ++j) y[j] = f(to_f32(in[j])...);
    round_block(out, y);
  }
}

// Neither inlined nor cloned: in two copies the compiler might fuse a product and a sum in one and not in the other.
template <class Out, class F, class... In>
[[gnu::noinline, gnu::noclone]] void map_blocks(std::int64_t n, Out* out, F f, const In*... in) {
  for (std::int64_t i = 0; i < n; i += block) map_block(out + i, f, (in + i)...);
}

template <class T>
std::array<T, block> padded(const T* in, std::int64_t n) {
  std::array<T, block> result{};
  std::copy_n(in, n, result.data());
  return result;
}

}  // namespace detail

// out[i] = f(in[i]...) in f32. `out` may be one of `in`. The tail runs through the same code as the blocks, so that the
// result of an element does not depend on its position.
template <class Out, class F, class... In>
void map(std::int64_t n, Out* out, F f, const In*... in) {
  const std::int64_t whole = n / block * block;
  detail::map_blocks(whole, out, f, in...);
  if (whole == n) return;
  Out tail[block];
  detail::map_blocks(block, tail, f, detail::padded(in + whole, n - whole).data()...);
  std::copy_n(tail, n - whole, out + whole);
}

// map(), shared by all threads.
template <class Out, class F, class... In>
void parallel_map(std::int64_t n, Out* out, F f, const In*... in) {
  parallel_for(n, grain_elements,
               [&](std::int64_t begin, std::int64_t end) { map(end - begin, out + begin, f, (in + begin)...); });
}

namespace detail {

inline float tree_sum(const float (&sums)[block]) {
  alignas(64) float t[block / 4];
  for (std::int64_t j = 0; j < block / 4; ++j)
    t[j] = (sums[j] + sums[j + block / 4]) + (sums[j + block / 2] + sums[j + 3 * block / 4]);
  for (std::int64_t j = 0; j < 8; ++j) t[j] += t[j + 8];
  for (std::int64_t j = 0; j < 4; ++j) t[j] += t[j + 4];
  return (t[0] + t[2]) + (t[1] + t[3]);
}

}  // namespace detail

// The sum of term(i) over i in [0, n): accumulator j of 64 adds the terms j, j + 64, ...; a tree adds the accumulators.
template <class F>
float sum(std::int64_t n, F term) {
  alignas(64) float sums[block] = {};
  std::int64_t i = 0;
  for (; i + block <= n; i += block) {
#pragma omp simd
    for (std::int64_t j = 0; j < block; ++j) sums[j] += term(i + j);
  }
  for (std::int64_t j = 0; i + j < n; ++j) sums[j] += term(i + j);
  return detail::tree_sum(sums);
}

// Two sums in one pass: term(i, a, b) sets the terms of both.
template <class F>
std::array<float, 2> sum2(std::int64_t n, F term) {
  alignas(64) float first[block] = {}, second[block] = {};
  std::int64_t i = 0;
  for (; i + block <= n; i += block) {
#pragma omp simd
    for (std::int64_t j = 0; j < block; ++j) {
      float a, b;
      term(i + j, a, b);
      first[j] += a;
      second[j] += b;
    }
  }
  for (std::int64_t j = 0; i + j < n; ++j) {
    float a, b;
    term(i + j, a, b);
    first[j] += a;
    second[j] += b;
  }
  return {detail::tree_sum(first), detail::tree_sum(second)};
}

// out[j] = (or, accumulating, +=) the sum over rows of x[row * stride + j], j in [0, columns). Single-threaded.
template <class T>
void add_rows(std::int64_t rows, std::int64_t columns, std::int64_t stride, const T* x, float* out, bool accumulate) {
  if (!accumulate) std::fill_n(out, columns, 0.f);
  std::int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {  // four rows at a time: a quarter of the traffic on `out`
    const T *a = x + r * stride, *b = a + stride, *c = b + stride, *d = c + stride;
#pragma omp simd
    for (std::int64_t j = 0; j < columns; ++j) out[j] += (to_f32(a[j]) + to_f32(b[j])) + (to_f32(c[j]) + to_f32(d[j]));
  }
  for (; r < rows; ++r) {
    const T* a = x + r * stride;
#pragma omp simd
    for (std::int64_t j = 0; j < columns; ++j) out[j] += to_f32(a[j]);
  }
}

// The filled rows of the experts' buffers [E,R,...]: expert e has the rows rows[e,0] <= r < rows[e,W].
class FilledRows {
 public:
  FilledRows(const TensorView& rows, std::int64_t buffer_rows)
      : rows_(rows.as<std::int32_t>()),
        experts_(rows.shape()[0]),
        sources_(rows.shape()[1] - 1),
        buffer_rows_(buffer_rows) {}

  std::int64_t experts() const { return experts_; }
  // The range of expert e's filled rows, as row numbers of the whole buffer [E*R,...].
  std::int64_t begin(std::int64_t e) const { return e * buffer_rows_ + rows_[e * (sources_ + 1)]; }
  std::int64_t end(std::int64_t e) const { return e * buffer_rows_ + rows_[e * (sources_ + 1) + sources_]; }
  std::int64_t total() const {
    std::int64_t n = 0;
    for (std::int64_t e = 0; e < experts_; ++e) n += end(e) - begin(e);
    return n;
  }

  // Calls f(begin, end) for ranges of filled rows, which threads share evenly, regardless of the experts.
  template <class F>
  void parallel(std::int64_t grain, F f) const {
    parallel_for(total(), grain, [&](std::int64_t first, std::int64_t last) {
      std::int64_t before = 0;  // filled rows of the experts before e
      for (std::int64_t e = 0; e < experts_ && before < last; ++e) {
        const std::int64_t count = end(e) - begin(e);
        const std::int64_t from = std::max<std::int64_t>(first - before, 0), to = std::min(last - before, count);
        if (from < to) f(begin(e) + from, begin(e) + to);
        before += count;
      }
    });
  }

 private:
  const std::int32_t* rows_;
  std::int64_t experts_, sources_, buffer_rows_;
};

namespace detail {

// Maps the whole tensor, or only its filled rows if the instruction has the operand number `rows`.
template <class Out, class F, class... In>
Kernel bind_map(const KernelArgs& args, int rows, Out* out, F f, const In*... in) {
  const Shape& shape = args.operands[0].shape();
  if (!args.has(rows)) {
    const std::int64_t n = shape.elements();
    return [=]() -> Status {
      parallel_map(n, out, f, in...);
      return {};
    };
  }
  const FilledRows filled(args.operands[std::size_t(rows)], shape[1]);
  const std::int64_t columns = shape[2];
  return [=]() -> Status {
    filled.parallel(row_grain(columns), [&](std::int64_t begin, std::int64_t end) {
      map((end - begin) * columns, out + begin * columns, f, (in + begin * columns)...);
    });
    return {};
  };
}

}  // namespace detail

// The kernel of an element-wise op f(in... [, rows]): of the whole tensor, or with the operand `rows` of filled rows.
template <class F, std::size_t inputs>
Kernel map_op(const KernelArgs& args) {
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    return [&]<std::size_t... i>(std::index_sequence<i...>) {
      return detail::bind_map(args, int(inputs), args.results[0].as<T>(), F{},
                              static_cast<const T*>(args.operands[i].as<T>())...);
    }
    (std::make_index_sequence<inputs>());
  });
}

}  // namespace lancet::ops::cpu
