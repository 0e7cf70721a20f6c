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
#include <functional>
#include <memory>

#include "lancet/backend/cuda/matmul_desc.h"

namespace lancet::backend::cuda {

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
