// Measured with oneDNN 2.6 on one AVX512_BF16 core, a product of 337 x 1024 x 256: a primitive for new extents costs
// 0.3 ms (f32) to 0.6 ms (bf16), more than the product's own 0.8 ms allows for row counts that change every step; one
// whose number of rows comes at run time (DNNL_RUNTIME_DIM_VAL) runs at 219 GFLOP/s, one of exact extents at 228.
#include "onednn_gemm.h"

#include <omp.h>

#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>

#include "lancet/base/check.h"

namespace lancet::backend::cpu {

namespace {

using dnnl::memory;

memory::data_type type_of(DType d) { return d == DType::f32 ? memory::data_type::f32 : memory::data_type::bf16; }

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// A row-major matrix with a stride, or its transpose; an extent may be DNNL_RUNTIME_DIM_VAL.
memory::desc matrix(std::int64_t rows, std::int64_t columns, DType dtype, std::int64_t stride, bool transposed) {
  return memory::desc({rows, columns}, type_of(dtype), transposed ? memory::dims{1, stride} : memory::dims{stride, 1});
}

struct Extents {
  std::int64_t m, n, k;
  auto operator<=>(const Extents&) const = default;
};

// Everything that a primitive is made for.
using Key = std::tuple<Extents, std::int64_t, std::int64_t, std::int64_t, int>;

Key key_of(const MatmulDesc& d, Extents e, bool accumulate) {
  const int bias = d.bias ? 1 + static_cast<int>(*d.bias) : 0;
  const int flags = (d.trans_a ? 1 : 0) | (d.trans_b ? 2 : 0) | (accumulate ? 4 : 0) | static_cast<int>(d.a) << 4 |
                    static_cast<int>(d.c) << 8 | bias << 12;
  return {e, d.lda, d.ldb, d.ldc, flags};
}

class Primitive {
 public:
  Primitive(const MatmulDesc& d, Extents e, bool accumulate) {
    dnnl::primitive_attr attr;
    if (accumulate) {
      dnnl::post_ops ops;
      ops.append_sum(1.f);
      attr.set_post_ops(ops);
    }
    const memory::desc a = matrix(e.m, e.k, d.a, d.lda, d.trans_a), b = matrix(e.k, e.n, d.b, d.ldb, d.trans_b);
    const memory::desc c = matrix(e.m, e.n, d.c, d.ldc, false);
    const auto op =
        d.bias ? dnnl::matmul::desc(a, b, matrix(1, e.n, *d.bias, e.n, false), c) : dnnl::matmul::desc(a, b, c);
    // The caller cuts the product among threads: the primitive is made for one.
    const int count = omp_get_max_threads();
    omp_set_num_threads(1);
    const dnnl::matmul::primitive_desc found(op, attr, cpu_engine(), true);
    if (found) matmul_ = dnnl::matmul(found);
    omp_set_num_threads(count);
  }
  // oneDNN does not have every combination: a bf16 bias on f32, for one.
  bool exists() const { return static_cast<bool>(matmul_); }

  void run(const MatmulDesc& d, Extents e, const void* a, const void* b, const void* bias, void* c) const {
    auto use = [](const memory::desc& desc, const void* data) {
      return memory(desc, cpu_engine(), const_cast<void*>(data));
    };
    const memory ma = use(matrix(e.m, e.k, d.a, d.lda, d.trans_a), a);
    const memory mb = use(matrix(e.k, e.n, d.b, d.ldb, d.trans_b), b);
    const memory mc = use(matrix(e.m, e.n, d.c, d.ldc, false), c);
    memory mbias;
    dnnl_exec_arg_t args[4] = {{DNNL_ARG_SRC, ma.get()}, {DNNL_ARG_WEIGHTS, mb.get()}, {DNNL_ARG_DST, mc.get()}, {}};
    if (d.bias) {
      mbias = use(matrix(1, e.n, *d.bias, e.n, false), bias);
      args[3] = {DNNL_ARG_BIAS, mbias.get()};
    }
    thread_local dnnl::stream stream(cpu_engine());
    const dnnl_status_t status = dnnl_primitive_execute(matmul_.get(), stream.get(), d.bias ? 4 : 3, args);
    LANCET_CHECK(status == dnnl_success, "oneDNN's product failed with status {}", static_cast<int>(status));
  }

 private:
  dnnl::matmul matmul_;
};

// A thread's primitives. Keys come from the shapes of a model, so there are few; the bound is against callers that
// make up new ones forever.
const Primitive& primitive(const MatmulDesc& d, Extents e, bool accumulate) {
  thread_local std::map<Key, Primitive> cache;
  const Key key = key_of(d, e, accumulate);
  auto found = cache.find(key);
  if (found == cache.end()) {
    if (cache.size() >= 1024) cache.clear();
    found = cache.emplace(key, Primitive(d, e, accumulate)).first;
  }
  return found->second;
}

const std::byte* offset(const void* base, std::int64_t elements, DType dtype) {
  return static_cast<const std::byte*>(base) + elements * size_of(dtype);
}

}  // namespace

bool onednn_has_matrix_unit() {
  static const bool has =
      (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & ~static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16) &
       static_cast<unsigned>(dnnl::cpu_isa::avx512_core_amx)) != 0;
  return has;
}

void onednn_gemm(const MatmulDesc& d, bool fixed, std::span<const Range> rows, Range columns,
                 std::span<const Range> reduction, const void* a, const void* b, const void* bias, void* c) {
  if (columns.size() == 0) return;
  bool first = true;
  for (Range k : reduction) {
    if (k.size() == 0) continue;
    for (Range r : rows) {
      if (r.size() == 0) continue;
      const Extents e{r.size(), columns.size(), k.size()};
      const bool accumulate = d.accumulate || !first;
      const std::int64_t row_extent = fixed || d.trans_a ? e.m : DNNL_RUNTIME_DIM_VAL;
      const std::int64_t sum_extent = fixed || !d.trans_a ? e.k : DNNL_RUNTIME_DIM_VAL;
      const std::int64_t at_a = d.trans_a ? k.begin * d.lda + r.begin : r.begin * d.lda + k.begin;
      const std::int64_t at_b = d.trans_b ? columns.begin * d.ldb + k.begin : k.begin * d.ldb + columns.begin;
      const void* at_c = offset(c, r.begin * d.ldc + columns.begin, d.c);
      const Primitive& p = primitive(d, {row_extent, e.n, sum_extent}, accumulate);
      if (!p.exists()) {
        MatmulDesc rest = d;
        rest.accumulate = accumulate;
        gemm(rest, {&r, 1}, columns, {&k, 1}, a, b, bias, c);
        continue;
      }
      p.run(d, e, offset(a, at_a, d.a), offset(b, at_b, d.b), d.bias ? offset(bias, columns.begin, *d.bias) : nullptr,
            const_cast<void*>(at_c));
    }
    first = false;
  }
  if (first) gemm(d, rows, columns, reduction, a, b, bias, c);  // an empty sum: zeros, the bias or C itself
}

}  // namespace lancet::backend::cpu
