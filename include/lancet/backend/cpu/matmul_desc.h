// The description of a matrix product on the CPU (matmul.h).
#pragma once
#include <cstdint>
#include <optional>

#include "lancet/base/dtype.h"

namespace lancet::backend::cpu {

struct MatmulDesc {
  std::int64_t m = 0, n = 0, k = 0;        // C is [m, n], the sum runs over k
  bool trans_a = false, trans_b = false;   // A is stored [k, m], B is stored [n, k]
  std::int64_t lda = 0, ldb = 0, ldc = 0;  // elements between rows as stored; 0: dense
  DType a = DType::f32, b = DType::f32, c = DType::f32;
  std::optional<DType> bias = {};  // [n], f32 or bf16, added to every row
  bool accumulate = false;         // add to C's old value
};

}  // namespace lancet::backend::cpu
