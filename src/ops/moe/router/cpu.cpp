// The three products of the router in f32. They are written out in vectors of 16, so that the time is that of the
// multiplications for any number of experts, and so that every sum has a fixed order: by D for a logit, by expert for
// dx, by token for dw.
#include <cstring>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "ops/cpu.h"

namespace lancet::ops {
namespace {

typedef float Lanes __attribute__((vector_size(64)));
typedef std::uint32_t Words __attribute__((vector_size(64)));
typedef std::uint16_t Halves __attribute__((vector_size(32)));
constexpr std::int64_t lanes = 16;  // SIMD lanes, the elements of a vector

LANCET_HD void load(Lanes& v, const float* p) { memcpy(&v, p, sizeof v); }
LANCET_HD void load(Lanes& v, const bf16* p) {
  Halves h;
  memcpy(&h, p, sizeof h);
  const Words w = __builtin_convertvector(h, Words) << 16;
  memcpy(&v, &w, sizeof v);
}
// Loads `count` elements and fills the rest of the vector with zeros.
template <class T>
LANCET_HD void load_part(Lanes& v, const T* p, std::int64_t count) {
  T padded[lanes] = {};
  std::copy_n(p, count, padded);
  load(v, padded);
}

// sum += a * b, rounded once if the machine has fused multiply-add. It is written out because a compiler may fuse in
// one tile and not in another; a token's logits would then depend on the part it is in.
LANCET_HD void add_product(Lanes& sum, const Lanes& a, const Lanes& b) {
#if defined(__AVX512F__)
  sum = _mm512_fmadd_ps(a, b, sum);
#elif defined(__FMA__)
  for (int j = 0; j < lanes; ++j) sum[j] = __builtin_fmaf(a[j], b[j], sum[j]);
#else
  sum += a * b;
#endif
}

LANCET_HD float tree_sum(const Lanes& v) {
  float t[lanes];
  memcpy(t, &v, sizeof t);
  for (int half = lanes / 2; half > 0; half /= 2)
    for (int j = 0; j < half; ++j) t[j] += t[j + half];
  return t[0];
}

// logits[a * stride + b] = x[a] . w[b] for A tokens and B experts. The logits do not depend on A and B.
template <int A, int B, class T>
void dots(std::int64_t d, const T* x, const float* w, float* logits, std::int64_t stride) {
  Lanes sum[A][B] = {};
  const auto step = [&](auto load_at) {
    Lanes row[A], weight[B];
    for (int a = 0; a < A; ++a) load_at(row[a], x + a * d);
    for (int b = 0; b < B; ++b) load_at(weight[b], w + b * d);
    for (int a = 0; a < A; ++a)
      for (int b = 0; b < B; ++b) add_product(sum[a][b], row[a], weight[b]);
  };
  std::int64_t i = 0;
  for (; i + lanes <= d; i += lanes) step([i](Lanes& v, const auto* p) { load(v, p + i); });
  if (i < d) step([i, d](Lanes& v, const auto* p) { load_part(v, p + i, d - i); });
  for (int a = 0; a < A; ++a)
    for (int b = 0; b < B; ++b) logits[a * stride + b] = tree_sum(sum[a][b]);
}

// Calls f(first, size as a constant) for n items in tiles of `Tile`, then one by one.
template <int Tile, class F>
LANCET_HD void tiles(std::int64_t n, F f) {
  std::int64_t i = 0;
  for (; i + Tile <= n; i += Tile) f(i, std::integral_constant<int, Tile>{});
  for (; i < n; ++i) f(i, std::integral_constant<int, 1>{});
}

Kernel bind(const KernelArgs& args) {
  const float* w = args.operands[1].as<float>();
  float* logits = args.results[0].as<float>();
  const std::int64_t tokens = args.operands[0].shape().rows(), d = args.operands[0].shape().back();
  const std::int64_t experts = args.operands[1].shape()[0];
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T* x = args.operands[0].as<T>();
    return [=]() -> Status {
      cpu::parallel_for(tokens, cpu::row_grain(d * experts), [&](std::int64_t begin, std::int64_t end) {
        tiles<4>(end - begin, [&](std::int64_t t, auto a) {
          t += begin;
          tiles<2>(experts, [&](std::int64_t e, auto b) {
            dots<a(), b()>(d, x + t * d, w + e * d, logits + t * experts + e, experts);
          });
        });
      });
      return {};
    };
  });
}

// out[a] = (or += if accumulate) the sum over k in [0, terms) of factors[a * stride_a + k * stride_k] * in[k], for A
// rows of d elements, on `width` <= 64 columns.
template <int A, class In, class Out>
void mix(std::int64_t terms, const float* factors, std::int64_t stride_a, std::int64_t stride_k, std::int64_t d,
         std::int64_t width, const In* in, Out* out, bool accumulate) {
  constexpr int vectors = cpu::block / lanes;
  Lanes sum[A][vectors] = {};
  const auto part = [width](int v) { return std::clamp<std::int64_t>(width - v * lanes, 0, lanes); };
  if constexpr (std::is_same_v<Out, float>)
    if (accumulate)
      for (int a = 0; a < A; ++a)
        for (int v = 0; v < vectors; ++v) load_part(sum[a][v], out + a * d + v * lanes, part(v));
  const auto run = [&](auto load_at) {
    for (std::int64_t k = 0; k < terms; ++k)
      for (int v = 0; v < vectors; ++v) {
        Lanes row;
        load_at(row, in + k * d + v * lanes, v);
        for (int a = 0; a < A; ++a) add_product(sum[a][v], Lanes{} + factors[a * stride_a + k * stride_k], row);
      }
  };
  if (width == cpu::block)
    run([](Lanes& row, const In* p, int) { load(row, p); });
  else
    run([&](Lanes& row, const In* p, int v) { load_part(row, p, part(v)); });
  for (int a = 0; a < A; ++a) {
    alignas(64) float y[cpu::block];
    memcpy(y, sum[a], sizeof y);
    cpu::map(
        width, out + a * d, [](float s) { return s; }, static_cast<const float*>(y));
  }
}

Kernel bind_dx(const KernelArgs& args) {
  const float *dlogits = args.operands[0].as<float>(), *w = args.operands[1].as<float>();
  const std::int64_t tokens = args.operands[0].shape().rows(), experts = args.operands[0].shape().back();
  const std::int64_t d = args.operands[1].shape()[1];
  return cpu::by_dtype(args.results[0].dtype(), [&]<class T>(T) -> Kernel {
    T* dx = args.results[0].as<T>();
    return [=]() -> Status {
      cpu::parallel_for(tokens, cpu::row_grain(d * experts), [&](std::int64_t begin, std::int64_t end) {
        tiles<4>(end - begin, [&](std::int64_t t, auto a) {
          t += begin;
          for (std::int64_t i = 0; i < d; i += cpu::block)
            mix<a()>(experts, dlogits + t * experts, experts, 1, d, std::min(cpu::block, d - i), w + i, dx + t * d + i,
                     false);
        });
      });
      return {};
    };
  });
}

// Threads share the columns; tokens come in groups that stay in the cache while all experts use them.
Kernel bind_dw(const KernelArgs& args) {
  const float* dlogits = args.operands[0].as<float>();
  float* dw = args.results[0].as<float>();
  const std::int64_t tokens = args.operands[0].shape().rows(), experts = args.operands[0].shape().back();
  const std::int64_t d = args.operands[1].shape().back();
  const bool accumulate = args.has(2);
  return cpu::by_dtype(args.operands[1].dtype(), [&]<class T>(T) -> Kernel {
    const T* x = args.operands[1].as<T>();
    return [=]() -> Status {
      constexpr std::int64_t group = 64;
      cpu::parallel_for(d, cpu::block, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = 0; t < tokens; t += group)
          for (std::int64_t i = begin; i < end; i += cpu::block)
            tiles<4>(experts, [&](std::int64_t e, auto a) {
              mix<a()>(std::min(group, tokens - t), dlogits + t * experts + e, 1, experts, d,
                       std::min(cpu::block, end - i), x + t * d + i, dw + e * d + i, accumulate || t > 0);
            });
      });
      return {};
    };
  });
}

const CpuKernel table[] = {{"router", bind}, {"router_dx", bind_dx}, {"router_dw", bind_dw}};

}  // namespace

std::span<const CpuKernel> router_cpu() { return table; }

}  // namespace lancet::ops
