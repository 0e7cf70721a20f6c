// The description of a product on a GPU (matmul.h), its operands, and what runs it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "lancet/backend/device.h"
#include "lancet/base/dtype.h"
#include "lancet/base/result.h"

namespace lancet::backend::cuda {

// cuBLAS's recommendation for Hopper. Products with a split sum keep their partial sums there.
inline constexpr std::size_t matmul_workspace_bytes = std::size_t{32} << 20;

// The function applied to an element x of C after the bias. gelu: gelu(x) in the tanh form; `argument` receives x.
// gelu_gradient: x times the derivative of GELU at `argument`.
enum class Activation { none, gelu, gelu_gradient };

struct MatmulDesc {
  std::int64_t m = 0, n = 0, k = 0;          // C is [m, n], the sum runs over k
  bool trans_a = false, trans_b = false;     // A is stored [k, m], B is stored [n, k]
  DType operands = DType::bf16;              // of A and B: f32 or bf16
  DType result = DType::bf16;                // of C: f32, or bf16 where the operands are
  bool bias = false;                         // [n] of C's type, added to every row
  bool accumulate = false;                   // add to C's old value
  bool row_sums = false;                     // also [m] of C's type: sums of op(A) over k; never accumulated
  Activation activation = Activation::none;  // not with accumulate or row_sums; n is then a multiple of 8
  std::int64_t parts = 1;                    // C is one of `parts` equal parts of a product of m * parts rows
};

std::string to_string(const MatmulDesc& desc);

struct MatmulOperands {
  const void *a = nullptr, *b = nullptr, *bias = nullptr;
  void *c = nullptr, *row_sums = nullptr;
  void* argument = nullptr;  // GELU's [m,n], of c's type: written by gelu, read by gelu_gradient
};

class Matmul {
 public:
  virtual ~Matmul() = default;
  // workspace: matmul_workspace_bytes, aligned to 256 bytes, as cuBLASLt requires.
  virtual Status run(Stream& stream, const MatmulOperands& operands, std::byte* workspace) = 0;
};

}  // namespace lancet::backend::cuda
