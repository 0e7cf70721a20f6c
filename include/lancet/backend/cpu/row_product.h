// Products of one or a few rows with a large matrix, as in text generation; reading the matrix bounds their speed.
#pragma once
#include <cstdint>

#include "lancet/base/dtype.h"

namespace lancet::backend::cpu {

// c[i, j] = bias[j] + sum over k of a[i, k] * b[j, k], i < m, j < n; all dense. a, b, c are f32, or all bf16; bias is
// f32 or null. b is read once, front to back. Sums are f32 and run along k in vectors: in another order than Matmul's,
// so the bits differ from those of the same row in a larger product. They do not depend on the number of threads.
void row_product(std::int64_t m, std::int64_t n, std::int64_t k, DType dtype, const void* a, const void* b,
                 const float* bias, void* c);

}  // namespace lancet::backend::cpu
