// A product is divided into a grid of rows and columns of C, one cell per thread. Each cell is a share that either the
// own kernel (gemm.h) or oneDNN (onednn_gemm.h) computes. The products of experts use one grid for all groups: a thread
// computes its cell of every group in turn, restricted to the rows that are given at run time.
#include "lancet/backend/cpu/matmul.h"

#include <algorithm>
#include <vector>

#include "gemm.h"
#include "lancet/backend/cpu/parallel.h"
#include "lancet/base/check.h"
#include "tile.h"
#if defined(LANCET_HAVE_ONEDNN)
#include "onednn_gemm.h"
#endif

namespace lancet::backend::cpu {
namespace {

MatmulDesc checked(MatmulDesc d, bool m_varies = false, bool k_varies = false) {
  LANCET_CHECK(d.m >= 0 && d.n >= 0 && d.k >= 0, "a product of {} x {} x {}", d.m, d.n, d.k);
  const bool f32 = d.a == DType::f32 && d.b == DType::f32 && d.c == DType::f32;
  const bool bf16 = d.a == DType::bf16 && d.b == DType::bf16 && (d.c == DType::bf16 || d.c == DType::f32);
  LANCET_CHECK(f32 || bf16, "no product of {} and {} into {}", name(d.a), name(d.b), name(d.c));
  LANCET_CHECK(!d.bias || *d.bias == DType::f32 || *d.bias == DType::bf16, "no bias of {}", name(*d.bias));
  const std::int64_t row_a = d.trans_a ? d.m : d.k, row_b = d.trans_b ? d.k : d.n;
  if (d.lda == 0) d.lda = row_a;
  if (d.ldb == 0) d.ldb = row_b;
  if (d.ldc == 0) d.ldc = d.n;
  LANCET_CHECK(d.lda >= row_a && d.ldb >= row_b && d.ldc >= d.n, "strides {}, {}, {} of rows of {}, {}, {}", d.lda,
               d.ldb, d.ldc, row_a, row_b, d.n);
  if (m_varies) LANCET_CHECK(!d.trans_a, "rows of a transposed A cannot vary");
  if (k_varies) LANCET_CHECK(d.trans_a && !d.trans_b && !d.bias, "a sum over rows is A^T B without bias");
  return d;
}

#if defined(LANCET_HAVE_ONEDNN)
// True if a product is large enough for oneDNN on the matrix unit. A primitive allocates in each call, and oneDNN
// rounds short sums differently depending on how threads cut the product. Parts of a product have fewer rows or columns
// and must give the same bits, so the length of the sum decides; where it varies from call to call (k = 0, weight
// gradients of experts), the extents of the weight do. One row of a transposed A is an exception: oneDNN leaves the
// matrix unit for it, so its bits are not those of a row among more.
bool suits_matrix_unit(const MatmulDesc& d) {
  constexpr std::int64_t least = 256;
  return (d.k == 0 ? std::min(d.m, d.n) : d.k) >= least;
}
#endif

// Computes the shares of a product's threads, by oneDNN or by the own kernel.
class Shares {
 public:
  // fixed: the extents are the description's; otherwise the number of rows, or of the sum's terms, varies.
  Shares([[maybe_unused]] const MatmulDesc& d, MatmulKernel kernel, [[maybe_unused]] bool fixed) {
#if defined(LANCET_HAVE_ONEDNN)
    d_ = d;
    fixed_ = fixed;
    onednn_ = kernel == MatmulKernel::onednn || (kernel == MatmulKernel::automatic && d.a == DType::bf16 &&
                                                 suits_matrix_unit(d) && onednn_has_matrix_unit());
#else
    LANCET_CHECK(kernel != MatmulKernel::onednn, "this build has no oneDNN");
#endif
  }
  // Called before the threads start, with the number of shares that they will run.
  void prepare([[maybe_unused]] int count) {
#if defined(LANCET_HAVE_ONEDNN)
    while (onednn_ && std::ssize(shares_) < count) shares_.push_back(std::make_unique<OnednnShare>(d_, fixed_));
#endif
  }
  void run([[maybe_unused]] std::int64_t share, const MatmulDesc& d, std::span<const Range> rows, Range columns,
           std::span<const Range> reduction, const void* a, const void* b, const void* bias, void* c) {
#if defined(LANCET_HAVE_ONEDNN)
    if (onednn_) return shares_[std::size_t(share)]->run(rows, columns, reduction, a, b, bias, c);
#endif
    gemm(d, rows, columns, reduction, a, b, bias, c);
  }

 private:
#if defined(LANCET_HAVE_ONEDNN)
  MatmulDesc d_;
  bool onednn_ = false, fixed_ = false;
  std::vector<std::unique_ptr<OnednnShare>> shares_;
#endif
};

class DenseMatmul final : public Matmul {
 public:
  DenseMatmul(const MatmulDesc& desc, MatmulKernel kernel) : d_(desc), shares_(desc, kernel, true) {}

  void run(const void* a, const void* b, const void* bias, void* c) override {
    const Grid grid = choose_grid(d_.m, d_.n, threads());
    shares_.prepare(grid.rows * grid.columns);
    parallel_for(grid.rows * grid.columns, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const Range rows = part_of(d_.m, kTileRows, grid.rows, static_cast<int>(i) / grid.columns);
        const Range columns = part_of(d_.n, kTileColumns, grid.columns, static_cast<int>(i) % grid.columns);
        const Range reduction{0, d_.k};
        shares_.run(i, d_, {&rows, 1}, columns, {&reduction, 1}, a, b, d_.bias ? bias : nullptr, c);
      }
    });
  }

 private:
  MatmulDesc d_;
  Shares shares_;
};

GroupedMatmulDesc complete(GroupedMatmulDesc d) {
  const bool by_rows = d.rows == GroupedRows::m;
  (by_rows ? d.product.m : d.product.k) = 0;
  d.product = checked(d.product, by_rows, !by_rows);
  return d;
}

class ExpertMatmul final : public GroupedMatmul {
 public:
  ExpertMatmul(const GroupedMatmulDesc& desc, MatmulKernel kernel)
      : d_(complete(desc)), shares_(d_.product, kernel, false) {
    const MatmulDesc& p = d_.product;
    LANCET_CHECK(d_.groups >= 0 && d_.segments >= 1, "{} groups of {} segments", d_.groups, d_.segments);
    if (d_.stride_b == 0) d_.stride_b = (p.trans_b ? p.n : p.k) * p.ldb;
    if (d_.stride_bias == 0) d_.stride_bias = p.n;
    if (d_.stride_c == 0) d_.stride_c = p.m * p.ldc;
  }

  void run(std::span<const std::int64_t> row_begin, std::span<const std::int64_t> row_end, const void* a, const void* b,
           const void* bias, void* c) override {
    const std::size_t ranges = static_cast<std::size_t>(d_.groups * d_.segments);
    LANCET_CHECK(row_begin.size() == ranges && row_end.size() == ranges, "{} and {} row ranges for {} groups of {}",
                 row_begin.size(), row_end.size(), d_.groups, d_.segments);
    std::int64_t rows = 0;
    for (std::size_t i = 0; i < ranges; ++i) rows += Range{row_begin[i], row_end[i]}.size();
    const MatmulDesc& p = d_.product;
    // One grid for all groups: every thread computes a share of each group, so unequal groups do not unbalance threads.
    const bool by_rows = d_.rows == GroupedRows::m;
    const Grid grid = choose_grid(by_rows ? rows / std::max<std::int64_t>(d_.groups, 1) : p.m, p.n, threads());
    shares_.prepare(grid.rows * grid.columns);
    parallel_for(grid.rows * grid.columns, 1, [&](std::int64_t begin, std::int64_t end) {
      thread_local std::vector<Range> mine;
      for (std::int64_t i = begin; i < end; ++i)
        for (std::int64_t g = 0; g < d_.groups; ++g) {
          mine.clear();
          for (std::int64_t s = g * d_.segments; s < (g + 1) * d_.segments; ++s)
            mine.push_back({row_begin[std::size_t(s)], row_end[std::size_t(s)]});
          const Range columns = part_of(p.n, kTileColumns, grid.columns, static_cast<int>(i) % grid.columns);
          one_group(i, g, mine, columns, grid, a, b, bias, c);
        }
    });
  }

 private:
  void one_group(std::int64_t share, std::int64_t g, std::vector<Range>& ranges, Range columns, Grid grid,
                 const void* a, const void* b, const void* bias, void* c) {
    const MatmulDesc& p = d_.product;
    const int row_parts = grid.rows, row_part = static_cast<int>(share) / grid.columns;
    if (d_.rows == GroupedRows::m) {
      for (Range& r : ranges) {
        const Range part = part_of(r.size(), kTileRows, row_parts, row_part);
        r = {r.begin + part.begin, r.begin + part.end};
      }
      const Range reduction{0, p.k};
      shares_.run(share, p, ranges, columns, {&reduction, 1}, a, offset(b, g * d_.stride_b, p.b),
                  p.bias ? offset(bias, g * d_.stride_bias, *p.bias) : nullptr, c);
    } else {
      const Range rows = part_of(p.m, kTileRows, row_parts, row_part);
      shares_.run(share, p, {&rows, 1}, columns, ranges, a, b, nullptr,
                  const_cast<std::byte*>(offset(c, g * d_.stride_c, p.c)));
    }
  }

  GroupedMatmulDesc d_;
  Shares shares_;
};

// Products of one or a few rows with a large matrix.

using simd::F32;
using simd::kLanes;

// Eight accumulators hide the latency of an addition. On Zen 4 this runs at 90 to 95% of the rate at which a core reads
// memory; the packed kernel (gemm.h), which transposes its operand, runs at 40%.
template <class T>
float dot(std::int64_t k, const T* a, const T* b) {
  constexpr int sums = 8;
  F32 sum[sums] = {};
  std::int64_t i = 0;
  for (; i + sums * kLanes <= k; i += sums * kLanes)
#pragma GCC unroll 8
    for (int s = 0; s < sums; ++s) sum[s] += simd::load(a + i + s * kLanes) * simd::load(b + i + s * kLanes);
  for (; i + kLanes <= k; i += kLanes) sum[0] += simd::load(a + i) * simd::load(b + i);
  for (int half = sums / 2; half > 0; half /= 2)
    for (int s = 0; s < half; ++s) sum[s] += sum[s + half];
  float total = 0;
  for (; i < k; ++i) total += to_f32(a[i]) * to_f32(b[i]);
  float lanes[kLanes];
  simd::store(lanes, sum[0]);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return total + lanes[0];
}

template <class T>
void product(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, const T* b, const float* bias, T* c) {
  constexpr std::int64_t grain = 64;  // rows of b: a cache line of results and more
  parallel_for(n, grain, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t j = begin; j < end; ++j)
      for (std::int64_t i = 0; i < m; ++i)
        c[i * n + j] = from_f32<T>((bias ? bias[j] : 0.f) + dot(k, a + i * k, b + j * k));
  });
}

}  // namespace

std::unique_ptr<Matmul> make_matmul(const MatmulDesc& desc, MatmulKernel kernel) {
  return std::make_unique<DenseMatmul>(checked(desc), kernel);
}

std::unique_ptr<GroupedMatmul> make_grouped_matmul(const GroupedMatmulDesc& desc, MatmulKernel kernel) {
  return std::make_unique<ExpertMatmul>(desc, kernel);
}

void row_product(std::int64_t m, std::int64_t n, std::int64_t k, DType dtype, const void* a, const void* b,
                 const float* bias, void* c) {
  LANCET_CHECK(dtype == DType::f32 || dtype == DType::bf16, "a product of f32 or bf16, found {}", name(dtype));
  if (dtype == DType::f32)
    product(m, n, k, static_cast<const float*>(a), static_cast<const float*>(b), bias, static_cast<float*>(c));
  else
    product(m, n, k, static_cast<const bf16*>(a), static_cast<const bf16*>(b), bias, static_cast<bf16*>(c));
}

}  // namespace lancet::backend::cpu
