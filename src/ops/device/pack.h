// Packs (16 bytes of neighbouring elements, which a thread moves by one instruction), and helpers to bind kernels.
#pragma once
#include <cstdint>
#include <tuple>
#include <type_traits>

#include "lancet/base/check.h"
#include "lancet/base/dtype.h"
#include "lancet/ops/kernel.h"
#include "launch.h"

namespace lancet::ops::device {

template <class T>
struct alignas(16) Pack {
  static constexpr int size = 16 / int(sizeof(T));
  T v[size];
};

// True if all addresses are aligned for packs. Null counts as aligned.
template <class... P>
bool aligned(const P*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}
// True if every row of `columns` elements starts at an aligned address, given that the first does.
template <class T>
bool aligned_rows(std::int64_t columns) {
  return columns % Pack<T>::size == 0;
}

// The elements of a pack that are in the range of interest: [first, last) of its `size`.
struct Part {
  int first, last;
  template <class T>
  LANCET_DEVICE bool whole() const {
    return first <= 0 && last >= Pack<T>::size;
  }
  LANCET_DEVICE bool empty() const { return first >= last; }
};

// Loads the elements of `part` at p, and zeros for the others, which are not read. `wide`: p is aligned to 16 bytes.
template <class T>
LANCET_DEVICE Pack<T> load(const T* p, Part part, bool wide) {
  Pack<T> pack;
  if (wide && part.whole<T>()) return *reinterpret_cast<const Pack<T>*>(p);
#pragma unroll
  for (int i = 0; i < Pack<T>::size; ++i) pack.v[i] = i >= part.first && i < part.last ? p[i] : T{};
  return pack;
}
template <class T>
LANCET_DEVICE void store(T* p, const Pack<T>& pack, Part part, bool wide) {
  if (wide && part.whole<T>()) return store_at_once(reinterpret_cast<Pack<T>*>(p), pack);
#pragma unroll
  for (int i = 0; i < Pack<T>::size; ++i)
    if (i >= part.first && i < part.last) p[i] = pack.v[i];
}

// The part of the pack at element `start` that is within a row of `columns` elements.
template <class T>
LANCET_DEVICE Part part_of_row(std::int64_t start, std::int64_t columns) {
  const std::int64_t left = columns - start;
  return {0, left < Pack<T>::size ? int(left < 0 ? 0 : left) : Pack<T>::size};
}

// x and y rounded to bf16 as by from_f32: to nearest even, NaN to 0x7fff. On a GPU one instruction rounds both.
struct alignas(4) Bf16Pair {
  bf16 v[2];
};
LANCET_DEVICE Bf16Pair rounded_pair(float x, float y) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  std::uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(y), "f"(x));  // the second operand is the lower half
  Bf16Pair pair;
  memcpy(&pair, &bits, sizeof pair);
  return pair;
#else
  return {{from_f32<bf16>(x), from_f32<bf16>(y)}};
#endif
}

// The elements of a pack of T as floats.
template <class T>
struct Floats {
  float v[Pack<T>::size];
};
template <class T>
LANCET_DEVICE Floats<T> to_floats(const Pack<T>& pack) {
  Floats<T> f;
#pragma unroll
  for (int i = 0; i < Pack<T>::size; ++i) f.v[i] = to_f32(pack.v[i]);
  return f;
}
template <class T>
LANCET_DEVICE Pack<T> from_floats(const Floats<T>& f) {
  Pack<T> pack;
  if constexpr (std::is_same_v<T, bf16>) {
#pragma unroll
    for (int i = 0; i < Pack<T>::size; i += 2) {
      const Bf16Pair pair = rounded_pair(f.v[i], f.v[i + 1]);
      memcpy(&pack.v[i], &pair, sizeof pair);
    }
  } else {
#pragma unroll
    for (int i = 0; i < Pack<T>::size; ++i) pack.v[i] = from_f32<T>(f.v[i]);
  }
  return pack;
}

// Loads as many floats as a pack of T has elements, from a vector of floats such as layer norm's gamma.
template <class T>
LANCET_DEVICE Floats<T> load_floats(const float* p, Part part, bool wide) {
  Floats<T> f;
#pragma unroll
  for (int i = 0; i < Pack<T>::size; i += 4) {
    const Pack<float> four = load(p + i, Part{part.first - i, part.last - i}, wide);
#pragma unroll
    for (int j = 0; j < 4; ++j) f.v[i + j] = four.v[j];
  }
  return f;
}
template <class T>
LANCET_DEVICE void store_floats(float* p, const Floats<T>& f, Part part, bool wide) {
#pragma unroll
  for (int i = 0; i < Pack<T>::size; i += 4) {
    Pack<float> four;
#pragma unroll
    for (int j = 0; j < 4; ++j) four.v[j] = f.v[i + j];
    store(p + i, four, Part{part.first - i, part.last - i}, wide);
  }
}

// One launch of a device kernel. Steps is the kernel of an op that makes several launches in order.
template <class F>
struct Step {
  std::int64_t blocks;
  F kernel;
  std::size_t shared = shared_bytes<F>();  // shared memory of a block
};
template <class... F>
struct Steps {
  backend::Stream* stream;
  std::tuple<Step<F>...> steps;

  Status operator()() const { return run<0>(); }

 private:
  template <std::size_t i>
  Status run() const {
    if constexpr (i < sizeof...(F)) {
      const auto& step = std::get<i>(steps);
      LANCET_TRY(launch(*stream, step.blocks, step.kernel, step.shared));
      return run<i + 1>();
    }
    return {};
  }
};
template <class... F>
Kernel run_steps(backend::Stream* stream, const Step<F>&... steps) {
  return Steps<F...>{stream, {steps...}};
}

// Calls f(T{}) with the element type T of an activation.
template <class F>
Kernel by_dtype(DType dtype, F&& f) {
  LANCET_CHECK(dtype == DType::f32 || dtype == DType::bf16, "a kernel of f32 or bf16, found {}", name(dtype));
  return dtype == DType::bf16 ? f(bf16{}) : f(float{});
}

// Allocates arrays one after the other from a workspace. With null memory it only counts the bytes.
class Scratch {
 public:
  explicit Scratch(std::byte* memory) : memory_(memory) {}
  template <class T>
  T* take(std::int64_t count) {
    const std::size_t at = bytes_;
    bytes_ = (bytes_ + std::size_t(count) * sizeof(T) + 63) / 64 * 64;
    return memory_ ? reinterpret_cast<T*>(memory_ + at) : nullptr;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  std::size_t bytes_ = 0;
};

}  // namespace lancet::ops::device
