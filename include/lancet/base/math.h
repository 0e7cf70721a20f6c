// Elementary functions of floats for both devices: no branches and no library calls, so that a loop over them
// vectorises (with -fno-math-errno -fno-trapping-math), and both backends compute the same formulas.
// Relative errors against double are below 2.5e-7 where no other bound is given (tests/backend/math_test.cpp).
#pragma once
#include <cstdint>
#include <cstring>

#include "lancet/base/hd.h"

namespace lancet {

namespace detail {
LANCET_HD float float_of_bits(std::int32_t bits) {
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
LANCET_HD std::int32_t bits_of_float(float f) {
  std::int32_t bits;
  memcpy(&bits, &f, 4);
  return bits;
}
}  // namespace detail

// a * b + c, rounded once where the machine has the instruction. The call is explicit, so that the compiler's choice
// cannot make the bits of the two devices differ.
LANCET_HD float fused_f32(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#elif defined(__FMA__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// a * b, rounded. g++ and nvcc may fuse a product with the sum that takes it, even in another statement; this one they
// do not. So a score minus the largest of equal scores is 0, where a fused one is the product's rounding error, whose
// exponential overflows for scores above 5e9. A vector or a float.
template <class F>
LANCET_HD F rounded_product(F a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  F product = a * b;
  asm("" : "+m"(product));
  return product;
#endif
}

// e^x. Below -87.3 the result is 0 (no denormals), above 88.3 infinity; NaN stays NaN.
LANCET_HD float exp_f32(float x) {
  const float clamped = x < -87.3f ? -87.3f : (x > 88.3f ? 88.3f : x);
  const float magic = 12582912.f;  // 1.5 * 2^23: adding it rounds to the nearest integer
  const float n = fused_f32(clamped, 1.44269504088896341f, magic) - magic;
  float r = fused_f32(n, -0.693359375f, clamped);  // ln 2 in two parts: the first is exact in 10 bits
  r = fused_f32(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = fused_f32(p, r, 1.3981999507e-3f);
  p = fused_f32(p, r, 8.3334519073e-3f);
  p = fused_f32(p, r, 4.1665795894e-2f);
  p = fused_f32(p, r, 1.6666665459e-1f);
  p = fused_f32(p, r, 5.0000001201e-1f);
  const float y = fused_f32(p * r, r, r) + 1.f;
  const float e = y * detail::float_of_bits((std::int32_t(n) + 127) << 23);
  return x < -87.3f ? 0.f : (x > 88.3f ? __builtin_huge_valf() : e);
}

// e^x for sums of many terms. On a GPU it takes two instructions, with a relative error of 2.5e-7 + 7.3e-8 |x|, which
// is small for the terms that contribute; denormal results are 0.
LANCET_HD float exp_fast_f32(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504088896341f));
  return y;
#else
  return exp_f32(x);
#endif
}

// a / b; on a GPU within 2 units in the last place, and 0 if |b| > 2^126.
LANCET_HD float divide_fast_f32(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdividef(a, b);
#else
  return a / b;
#endif
}

// Natural logarithm. 0 gives -infinity, negative numbers and NaN give NaN; denormals count as 0.
LANCET_HD float log_f32(float x) {
  const std::int32_t bits = detail::bits_of_float(x);
  std::int32_t exponent = ((bits >> 23) & 0xff) - 126;
  float m = detail::float_of_bits((bits & 0x007fffff) | 0x3f000000);  // [0.5, 1)
  const bool low = m < 0.707106781186547524f;
  const float e = float(exponent - (low ? 1 : 0));
  m = (low ? m + m : m) - 1.f;  // [sqrt(1/2), sqrt 2) - 1
  const float z = m * m;
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  float y = p * m * z;
  y = y + e * -2.12194440e-4f;
  y = y - 0.5f * z;
  const float result = (m + y) + e * 0.693359375f;
  const float inf = __builtin_huge_valf();
  const float normal = x < inf ? result : x;  // infinity and NaN are returned as they are
  return x >= 1.17549435e-38f ? normal : (x >= 0.f ? -inf : __builtin_nanf(""));
}

}  // namespace lancet
