// LtProduct: one product as cuBLASLt describes it, its operation, its layouts and the algorithm that runs it.
#pragma once
#include <cublasLt.h>

#include <memory>
#include <string>
#include <vector>

#include "lancet/backend/cuda/matmul_desc.h"

namespace lancet::backend::cuda {

template <auto destroy>
struct Destroy {
  template <class T>
  void operator()(T* handle) const {
    destroy(handle);
  }
};
template <class Handle, auto destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<destroy>>;

class LtProduct final : public Matmul {
 public:
  static Result<std::unique_ptr<LtProduct>> make(const MatmulDesc& desc, bool tf32);

  const MatmulDesc& desc() const { return desc_; }
  // The description with what else decides whether an algorithm is valid: the device and the library's version.
  const std::string& key() const { return key_; }

  // cuBLASLt's proposals for operands aligned to `alignment` bytes, the one it considers fastest first; never empty.
  Result<std::vector<cublasLtMatmulAlgo_t>> propose(const MatmulOperands& operands, std::uint32_t alignment) const;
  // True if cuBLASLt runs the algorithm on these extents, within matmul_workspace_bytes.
  bool accepts(const cublasLtMatmulAlgo_t& algorithm, const MatmulOperands& operands) const;

  // The algorithm of run(); it must be set before.
  void use(const cublasLtMatmulAlgo_t& algorithm) { algorithm_ = algorithm; }
  Status run(Stream& stream, const MatmulOperands& operands, std::byte* workspace) override;

 private:
  using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
  using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

  explicit LtProduct(const MatmulDesc& desc) : desc_(desc) {}
  static Result<Layout> make_layout(DType dtype, std::int64_t rows, std::int64_t columns);
  template <class T>
  Status set(cublasLtMatmulDescAttributes_t attribute, T value) const;
  Status describe(bool tf32);
  Status set_addresses(const MatmulOperands& operands) const;

  MatmulDesc desc_;
  cublasLtHandle_t library_ = nullptr;
  std::string key_;
  Operation operation_;
  Layout a_, b_, c_;
  cublasLtMatmulAlgo_t algorithm_{};
};

}  // namespace lancet::backend::cuda
