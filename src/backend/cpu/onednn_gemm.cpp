// Measured with oneDNN 2.6 on one AVX512_BF16 core, a product of 337 x 1024 x 256: a primitive for new extents costs
// 0.3 ms (f32) to 0.6 ms (bf16), too much beside the product's own 0.8 ms if row counts change every step. A primitive
// that gets its number of rows at run time (DNNL_RUNTIME_DIM_VAL) runs at 219 GFLOP/s, one of exact extents at 228.
// A step allocates nothing, except the memory objects of products whose number of rows is given at run time.
#include "onednn_gemm.h"

#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>

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
  bool operator==(const Extents&) const = default;
};

// The primitives' scratchpad. It belongs to the running thread; oneDNN's own belongs to the thread that made the
// primitive.
void* scratch_of_this_thread(std::size_t bytes) {
  thread_local Buffer scratch;
  if (scratch.size() < bytes) scratch = Buffer::raw(bytes);
  return scratch.data();
}

}  // namespace

class OnednnShare::Primitive {
 public:
  Primitive(const MatmulDesc& d, Extents e, bool accumulate) : d_(d), made_for_(e), accumulate_(accumulate) {
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (accumulate) {
      dnnl::post_ops ops;
      ops.append_sum(1.f);
      attr.set_post_ops(ops);
    }
    const Descs m = descs(e);
    const auto op = d.bias ? dnnl::matmul::desc(m.a, m.b, m.bias, m.c) : dnnl::matmul::desc(m.a, m.b, m.c);
    // The caller divides the product among threads, so the primitive is made for one thread.
    const int count = omp_get_max_threads();
    omp_set_num_threads(1);
    const dnnl::matmul::primitive_desc found(op, attr, cpu_engine(), true);
    if (found) {
      matmul_ = dnnl::matmul(found);
      scratch_bytes_ = found.scratchpad_desc().get_size();
      scratch_ = memory(found.scratchpad_desc(), cpu_engine(), DNNL_MEMORY_NONE);
    }
    omp_set_num_threads(count);
  }
  bool is_for(Extents e, bool accumulate) const { return made_for_ == e && accumulate_ == accumulate; }
  // False if oneDNN lacks the combination of types, for example a bf16 bias on an f32 product.
  bool exists() const { return static_cast<bool>(matmul_); }

  void run(Extents e, const void* a, const void* b, const void* bias, void* c) {
    if (e != objects_for_) make_objects(e);
    a_.set_data_handle(const_cast<void*>(a));
    b_.set_data_handle(const_cast<void*>(b));
    c_.set_data_handle(c);
    if (d_.bias) bias_.set_data_handle(const_cast<void*>(bias));
    if (scratch_bytes_ > 0) scratch_.set_data_handle(scratch_of_this_thread(scratch_bytes_));
    const dnnl_exec_arg_t args[5] = {{DNNL_ARG_SRC, a_.get()},
                                     {DNNL_ARG_WEIGHTS, b_.get()},
                                     {DNNL_ARG_DST, c_.get()},
                                     {DNNL_ARG_SCRATCHPAD, scratch_.get()},
                                     {DNNL_ARG_BIAS, bias_.get(true)}};
    thread_local dnnl::stream stream(cpu_engine());
    const dnnl_status_t status = dnnl_primitive_execute(matmul_.get(), stream.get(), d_.bias ? 5 : 4, args);
    LANCET_CHECK(status == dnnl_success, "oneDNN's product failed with status {}", static_cast<int>(status));
  }

 private:
  struct Descs {
    memory::desc a, b, bias, c;
  };
  Descs descs(Extents e) const {
    return {matrix(e.m, e.k, d_.a, d_.lda, d_.trans_a), matrix(e.k, e.n, d_.b, d_.ldb, d_.trans_b),
            d_.bias ? matrix(1, e.n, *d_.bias, e.n, false) : memory::desc(), matrix(e.m, e.n, d_.c, d_.ldc, false)};
  }
  void make_objects(Extents e) {
    const Descs m = descs(e);
    a_ = memory(m.a, cpu_engine(), DNNL_MEMORY_NONE);
    b_ = memory(m.b, cpu_engine(), DNNL_MEMORY_NONE);
    c_ = memory(m.c, cpu_engine(), DNNL_MEMORY_NONE);
    if (d_.bias) bias_ = memory(m.bias, cpu_engine(), DNNL_MEMORY_NONE);
    objects_for_ = e;
  }

  MatmulDesc d_;
  Extents made_for_, objects_for_{-1, -1, -1};
  bool accumulate_;
  dnnl::matmul matmul_;
  std::size_t scratch_bytes_ = 0;
  memory a_, b_, bias_, c_, scratch_;
};

OnednnShare::OnednnShare(const MatmulDesc& desc, bool fixed) : d_(desc), fixed_(fixed) {}
OnednnShare::~OnednnShare() = default;

// A share has one primitive, or two if it accumulates over ranges; more only if its caller's number of threads changes
// or another number of rows changes the grid of a grouped product. The bound of 64 protects against endless change.
OnednnShare::Primitive& OnednnShare::primitive(std::int64_t m, std::int64_t n, std::int64_t k, bool accumulate) {
  for (const auto& known : primitives_)
    if (known->is_for({m, n, k}, accumulate)) return *known;
  if (primitives_.size() >= 64) primitives_.clear();
  return *primitives_.emplace_back(std::make_unique<Primitive>(d_, Extents{m, n, k}, accumulate));
}

void OnednnShare::run(std::span<const Range> rows, Range columns, std::span<const Range> reduction, const void* a,
                      const void* b, const void* bias, void* c) {
  const MatmulDesc& d = d_;
  if (columns.size() == 0) return;
  bool first = true;
  for (Range k : reduction) {
    if (k.size() == 0) continue;
    for (Range r : rows) {
      if (r.size() == 0) continue;
      const Extents e{r.size(), columns.size(), k.size()};
      const bool accumulate = d.accumulate || !first;
      const std::int64_t row_extent = fixed_ || d.trans_a ? e.m : DNNL_RUNTIME_DIM_VAL;
      const std::int64_t sum_extent = fixed_ || !d.trans_a ? e.k : DNNL_RUNTIME_DIM_VAL;
      const std::int64_t at_a = d.trans_a ? k.begin * d.lda + r.begin : r.begin * d.lda + k.begin;
      const std::int64_t at_b = d.trans_b ? columns.begin * d.ldb + k.begin : k.begin * d.ldb + columns.begin;
      const void* at_c = offset(c, r.begin * d.ldc + columns.begin, d.c);
      Primitive& p = primitive(row_extent, e.n, sum_extent, accumulate);
      if (!p.exists()) {
        MatmulDesc rest = d;
        rest.accumulate = accumulate;
        gemm(rest, {&r, 1}, columns, {&k, 1}, a, b, bias, c);
        continue;
      }
      p.run(e, offset(a, at_a, d.a), offset(b, at_b, d.b), d.bias ? offset(bias, columns.begin, *d.bias) : nullptr,
            const_cast<void*>(at_c));
    }
    first = false;
  }
  if (first) gemm(d, rows, columns, reduction, a, b, bias, c);  // an empty sum: zeros, the bias or the old C
}

bool onednn_has_matrix_unit() {
  static const bool has =
      (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & ~static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16) &
       static_cast<unsigned>(dnnl::cpu_isa::avx512_core_amx)) != 0;
  return has;
}

}  // namespace lancet::backend::cpu
