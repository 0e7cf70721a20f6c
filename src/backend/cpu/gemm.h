// The project's own matrix product: packed panels, tiles in registers (tile.h). It computes every product on machines
// without a matrix unit that oneDNN would use, all products of experts, and everything in builds without oneDNN.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "lancet/backend/cpu/buffer.h"
#include "lancet/backend/cpu/matmul_desc.h"

namespace lancet::backend::cpu {

struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end > begin ? end - begin : 0; }
};

// Scratch memory of one thread, bounded by the blocking (about 4 MiB); allocated at the thread's first product.
class GemmScratch {
 public:
  static GemmScratch& of_this_thread();
  static std::size_t bytes();

  struct Panel {
    std::int64_t row;
    int rows;
  };
  std::vector<Panel> panels;  // of C's rows
  std::vector<Range> chunks;  // of k
  void* packed_a() const { return memory_.as<std::byte>() + a_; }
  void* packed_b() const { return memory_.as<std::byte>() + b_; }
  float* partial() const { return reinterpret_cast<float*>(memory_.as<std::byte>() + partial_); }
  float* bias() const { return reinterpret_cast<float*>(memory_.as<std::byte>() + bias_); }

 private:
  GemmScratch();
  Buffer memory_;
  std::size_t a_ = 0, b_ = 0, partial_ = 0, bias_ = 0;
};

// Computes one thread's share of C = op(A) op(B): the given rows and columns, summed over the ranges of `reduction` in
// order. desc.m and desc.k bound the elements that may be read along a row, not those that are computed.
void gemm(const MatmulDesc& desc, std::span<const Range> rows, Range columns, std::span<const Range> reduction,
          const void* a, const void* b, const void* bias, void* c);

// The address of an element, by its number from `base` on.
inline const std::byte* offset(const void* base, std::int64_t elements, DType dtype) {
  return static_cast<const std::byte*>(base) + elements * size_of(dtype);
}

// The numbers of threads along C's rows and along its columns.
struct Grid {
  int rows = 1, columns = 1;
};
Grid choose_grid(std::int64_t m, std::int64_t n, int threads);

// Part `index` of `parts` of [0, n), cut at multiples of `grain`.
Range part_of(std::int64_t n, std::int64_t grain, int parts, int index);

}  // namespace lancet::backend::cpu
