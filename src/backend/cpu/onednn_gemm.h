// Computes the same share of a product as gemm.h, by oneDNN: for machines with a matrix unit (AMX), which oneDNN's
// generated code uses and the own kernel does not. Elsewhere the own tiles are as fast and need no primitive per shape.
#pragma once
#include <memory>
#include <span>

#include "gemm.h"

namespace lancet::backend::cpu {

bool onednn_has_matrix_unit();  // true if oneDNN computes bf16 products on a matrix unit on this machine

// One thread's share of one product and the primitives made for it: few, since a share keeps its position in C's grid
// from run to run. One thread at a time uses it, not always the same one.
class OnednnShare {
 public:
  // fixed: the extents recur from call to call, so primitives are made for exactly these extents; otherwise one
  // primitive gets its number of rows (or the length of its sum) when it runs.
  OnednnShare(const MatmulDesc& desc, bool fixed);
  ~OnednnShare();
  // As gemm().
  void run(std::span<const Range> rows, Range columns, std::span<const Range> reduction, const void* a, const void* b,
           const void* bias, void* c);

 private:
  class Primitive;
  Primitive& primitive(std::int64_t m, std::int64_t n, std::int64_t k, bool accumulate);

  MatmulDesc d_;
  bool fixed_;
  std::vector<std::unique_ptr<Primitive>> primitives_;
};

}  // namespace lancet::backend::cpu
