// Matrix products on a GPU, row-major: C = op(A) op(B) (+ bias) (+ C), by cuBLASLt. Extents, types and transposes are
// those of the CPU's products (backend/cpu/matmul.h); all operands are dense.
//
// An element's bits may depend on the extents, but not on the run: the algorithm of a product comes from the table of
// choices (matmul_choices.h), else it is cuBLASLt's first proposal. Measuring fills the table; it is saved in a file
// with the profile, so that every later run, and every rank, uses the same algorithms.
//
// A part of a product, some of its rows, takes the algorithm of the whole, so that the whole has the same bits in any
// number of parts. If cuBLASLt refuses that algorithm for the part's extents, the part's algorithm is that of a product
// of its own extents, and the bits may differ. They may also differ if a part is aligned to fewer bytes than the whole.
//
// Threading: one thread at a time runs a Matmul; the table and the settings are shared and guarded.
// Errors: cuBLASLt has no algorithm for a description; the message names the description.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
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

// For the device of the calling thread. operands: the addresses that run() will get (cuBLASLt considers their
// alignment). stream: if measuring is on, algorithms are timed on it; nothing else uses it meanwhile.
Result<std::unique_ptr<Matmul>> make_matmul(const MatmulDesc& desc, const MatmulOperands& operands, Stream& stream);

// A product that is ready to be queued.
struct MatmulCall {
  std::shared_ptr<Matmul> product;  // shared: calls are copied
  MatmulDesc desc;
  MatmulOperands operands;
  Stream* stream = nullptr;
  std::byte* workspace = nullptr;
  Status operator()() const { return product->run(*stream, operands, workspace); }
};

// Returns what queues a product and the kernels beside it. call.desc and call.operands are those of the product with
// its epilogue.
using BindMatmul = std::function<std::function<Status()>(const MatmulCall& call)>;
// The other way to the result of a product with an epilogue: the product without it, and kernels of one's own.
struct Unfused {
  MatmulDesc desc;                // of the product without the epilogue
  std::size_t own_workspace = 0;  // bytes that the kernels beside either product use after its workspace
  BindMatmul bind;                // call.product is the one without the epilogue
  BindMatmul bind_fused = {};     // call.product is the one with it; empty: no kernels beside it
};
// The product with its epilogue; null if cuBLASLt has no algorithm for it, or if the other way was measured as faster,
// which the table of choices then says.
std::unique_ptr<Matmul> make_fused_matmul(const MatmulDesc& desc, const MatmulOperands& operands, Stream& stream,
                                          const Unfused& unfused);

struct MatmulSettings {
  bool tf32 = false;     // f32 products on tensor cores, with operands of 10 bits
  bool measure = false;  // a product missing from the table is timed when it is made, and added to the table
};
void set_matmul_settings(const MatmulSettings& settings);

}  // namespace lancet::backend::cuda
