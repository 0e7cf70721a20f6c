// Matrix products on a GPU, row-major: C = op(A) op(B) (+ bias) (+ C), by cuBLASLt. Extents, types and transposes mean
// what they mean on the CPU (backend/cpu/matmul.h); all operands are dense.
//
// An element's bits may depend on the extents, but not on the run: the algorithm of a product is cuBLASLt's first
// proposal, or what the table of choices says. Measuring fills the table; it goes into a file with the profile, so that
// every later run, and every rank, takes the same algorithms.
//
// Threading: one thread at a time runs a Matmul; the table and the settings are shared and guarded.
// Errors: cuBLASLt has no algorithm for a description; the description is named.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "lancet/backend/device.h"
#include "lancet/base/dtype.h"
#include "lancet/base/result.h"

namespace lancet::backend::cuda {

// What becomes of an element of C behind the bias: gelu(it), in the tanh form, where `argument` gets it as it was; or
// it times GELU's slope at `argument`.
enum class Activation { none, gelu, gelu_gradient };

struct MatmulDesc {
  std::int64_t m = 0, n = 0, k = 0;          // C is [m, n], the sum runs over k
  bool trans_a = false, trans_b = false;     // A is stored [k, m], B is stored [n, k]
  DType operands = DType::bf16;              // of A and B: f32 or bf16
  DType result = DType::bf16;                // of C: f32, or bf16 where the operands are
  bool bias = false;                         // [n] of C's type, added to every row
  bool accumulate = false;                   // add to what C holds
  bool row_sums = false;                     // also [m] of C's type: the sums of op(A) over k, which are never added up
  Activation activation = Activation::none;  // not with accumulate or row_sums; n is then a multiple of 8
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
  // workspace: matmul_workspace_bytes, aligned to 64 bytes.
  virtual Status run(Stream& stream, const MatmulOperands& operands, std::byte* workspace) = 0;
};

// On the device of the calling thread. `operands`: the addresses that run() will be given (cuBLASLt looks at their
// alignment).
Result<std::unique_ptr<Matmul>> make_matmul(const MatmulDesc& desc, const MatmulOperands& operands);

// What cuBLAS recommends for Hopper: a product whose sum is split writes its parts there.
inline constexpr std::size_t matmul_workspace_bytes = std::size_t{32} << 20;

struct MatmulSettings {
  bool tf32 = false;     // f32 products on tensor cores, with operands of 10 bits
  bool measure = false;  // products that are not in the table are timed when they are made, and put there
};
void set_matmul_settings(const MatmulSettings& settings);

// The table as text, a line a product. It names device and library: lines of others are kept and not used.
std::string matmul_choices();
Status add_matmul_choices(std::string_view text);

}  // namespace lancet::backend::cuda
