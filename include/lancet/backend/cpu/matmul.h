// Matrix products on the CPU, row-major: C = op(A) op(B) (+ bias) (+ C).
//
// Weights are [out, in], as torch's Linear has them, so the three products of a linear layer are
//   forward  Y[rows, out]  = X[rows, in]  W^T            trans_b
//   dX       dX[rows, in]  = dY[rows, out] W
//   dW       dW[out, in]   = dY^T X                      trans_a, f32 result
// Types: a = b = f32, c = f32; a = b = bf16, c = bf16 or f32. Sums are f32 throughout.
//
// The own kernel sums an element of C in order of k, starting from the accumulated value or the bias. So its bits
// depend only on its row of op(A) and its column of op(B): not on m, the row's position or the number of threads. A
// sum over k that accumulates part by part (of even lengths) equals the sum of the whole, and a batch computed in parts
// gives the bits of the batch. oneDNN does not promise that; its products of fixed extents, made for one thread each,
// were observed to keep the bits of rows for every cut of m (2.6, AVX512_BF16).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "lancet/backend/cpu/matmul_desc.h"
#include "lancet/base/dtype.h"

namespace lancet::backend::cpu {

// automatic: oneDNN for bf16 where the CPU has a matrix unit (AMX), else own. A build without oneDNN has only own.
enum class MatmulKernel { automatic, own, onednn };

// A product of fixed extents. run() allocates nothing after its first call on a thread. One thread at a time may run
// a Matmul: it uses the threads (parallel.h) of its caller.
class Matmul {
 public:
  virtual ~Matmul() = default;
  // bias: null if the description has none. C overlaps neither A nor B.
  virtual void run(const void* a, const void* b, const void* bias, void* c) = 0;
};

// A description that no kernel supports (types, a stride below the row's length) is a broken invariant.
std::unique_ptr<Matmul> make_matmul(const MatmulDesc& desc, MatmulKernel kernel = MatmulKernel::automatic);

// Bytes that each thread that computes products keeps for packed operands (whole huge pages).
std::size_t matmul_scratch_bytes();

// The products of experts: one per group, over a number of rows that is known only at run time.
//   rows == m: C[begin..end, :] = A[begin..end, :] op(B[group])  (+ bias[group])      forward and dX
//   rows == k: C[group] = A[begin..end, :]^T B[begin..end, :]                         dW: trans_a, not trans_b
// No row outside the given ranges is read or written. A group without rows: nothing for m; zeros (or C as it is,
// when accumulating) for k.
enum class GroupedRows { m, k };

struct GroupedMatmulDesc {
  GroupedRows rows = GroupedRows::m;
  MatmulDesc product;  // of one group; the extent that `rows` names is not used
  std::int64_t groups = 0;
  std::int64_t segments = 1;     // row ranges per group: an expert's slots are separate for each source rank
  std::int64_t stride_b = 0;     // rows == m: elements between weights; 0: dense
  std::int64_t stride_bias = 0;  // rows == m: likewise
  std::int64_t stride_c = 0;     // rows == k: between results
};

class GroupedMatmul {
 public:
  virtual ~GroupedMatmul() = default;
  // row_begin, row_end: [groups * segments], segments of one group next to each other; rows of the whole A (and of C
  // for m, of B for k). Ranges are disjoint; an empty one has end <= begin.
  virtual void run(std::span<const std::int64_t> row_begin, std::span<const std::int64_t> row_end, const void* a,
                   const void* b, const void* bias, void* c) = 0;
};

std::unique_ptr<GroupedMatmul> make_grouped_matmul(const GroupedMatmulDesc& desc,
                                                   MatmulKernel kernel = MatmulKernel::automatic);

// Products of one or a few rows with a large matrix, as in text generation; reading the matrix bounds their speed.

// c[i, j] = bias[j] + sum over k of a[i, k] * b[j, k], i < m, j < n; all dense. a, b, c are f32, or all bf16; bias is
// f32 or null. b is read once, front to back. Sums are f32 and run along k in vectors: in another order than Matmul's,
// so the bits differ from those of the same row in a larger product. They do not depend on the number of threads.
void row_product(std::int64_t m, std::int64_t n, std::int64_t k, DType dtype, const void* a, const void* b,
                 const float* bias, void* c);

}  // namespace lancet::backend::cpu
