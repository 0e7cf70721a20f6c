#include "lancet/backend/cpu/matmul.h"

#include "lancet/backend/cpu/parallel.h"
#include "lancet/base/check.h"
#include "simd.h"

namespace lancet::backend::cpu {
namespace {

using simd::F32;
using simd::kLanes;

// Eight accumulators hide the latency of an addition. On Zen 4 this runs at 90 to 95% of the rate at which a core reads
// memory; the packed kernel (gemm.h), which transposes its operand, runs at 40%.
template <class T>
float dot(std::int64_t k, const T* a, const T* b) {
  constexpr int sums = 8;
  F32 sum[sums] = {};
  std::int64_t i = 0;
  for (; i + sums * kLanes <= k; i += sums * kLanes)
#pragma GCC unroll 8
    for (int s = 0; s < sums; ++s) sum[s] += simd::load(a + i + s * kLanes) * simd::load(b + i + s * kLanes);
  for (; i + kLanes <= k; i += kLanes) sum[0] += simd::load(a + i) * simd::load(b + i);
  for (int half = sums / 2; half > 0; half /= 2)
    for (int s = 0; s < half; ++s) sum[s] += sum[s + half];
  float total = 0;
  for (; i < k; ++i) total += to_f32(a[i]) * to_f32(b[i]);
  float lanes[kLanes];
  simd::store(lanes, sum[0]);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return total + lanes[0];
}

template <class T>
void product(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, const T* b, const float* bias, T* c) {
  constexpr std::int64_t grain = 64;  // rows of b: a cache line of results and more
  parallel_for(n, grain, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t j = begin; j < end; ++j)
      for (std::int64_t i = 0; i < m; ++i)
        c[i * n + j] = from_f32<T>((bias ? bias[j] : 0.f) + dot(k, a + i * k, b + j * k));
  });
}

}  // namespace

void row_product(std::int64_t m, std::int64_t n, std::int64_t k, DType dtype, const void* a, const void* b,
                 const float* bias, void* c) {
  LANCET_CHECK(dtype == DType::f32 || dtype == DType::bf16, "a product of f32 or bf16, found {}", name(dtype));
  if (dtype == DType::f32)
    product(m, n, k, static_cast<const float*>(a), static_cast<const float*>(b), bias, static_cast<float*>(c));
  else
    product(m, n, k, static_cast<const bf16*>(a), static_cast<const bf16*>(b), bias, static_cast<bf16*>(c));
}

}  // namespace lancet::backend::cpu
