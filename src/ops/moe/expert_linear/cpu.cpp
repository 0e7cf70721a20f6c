#include <memory>
#include <vector>

#include "lancet/backend/cpu/matmul.h"
#include "ops/cpu.h"

namespace lancet::ops {
namespace {

using backend::cpu::GroupedMatmul;
using backend::cpu::GroupedMatmulDesc;
using backend::cpu::GroupedRows;

// A product over the experts' filled rows, one range of rows per expert; the ranges are read when it runs.
struct ExpertProduct {
  ExpertProduct(const GroupedMatmulDesc& desc, cpu::FilledRows filled)
      : matmul(backend::cpu::make_grouped_matmul(desc)),
        filled(filled),
        begin(std::size_t(desc.groups)),
        end(std::size_t(desc.groups)) {}

  void run(const void* a, const void* b, const void* bias, void* c) {
    for (std::int64_t e = 0; e < filled.experts(); ++e) {
      begin[std::size_t(e)] = filled.begin(e);
      end[std::size_t(e)] = filled.end(e);
    }
    matmul->run(begin, end, a, b, bias, c);
  }

  std::unique_ptr<GroupedMatmul> matmul;
  cpu::FilledRows filled;
  std::vector<std::int64_t> begin, end;
};

// m, n and k of one expert's product; `rows` says which of m and k is replaced by the number of filled rows.
GroupedMatmulDesc extents(GroupedRows rows, std::int64_t experts, std::int64_t m, std::int64_t n, std::int64_t k,
                          DType operands, DType result) {
  return {
      .rows = rows, .product = {.m = m, .n = n, .k = k, .a = operands, .b = operands, .c = result}, .groups = experts};
}

Kernel product(const GroupedMatmulDesc& desc, const cpu::FilledRows& filled, const void* a, const void* b,
               const void* bias, void* c) {
  const auto state = std::make_shared<ExpertProduct>(desc, filled);
  return [=]() -> Status {
    state->run(a, b, bias, c);
    return {};
  };
}

// The experts' biases, the operand before the last; null without them.
const float* bias_of(const KernelArgs& args) {
  return args.operands.size() > 3 ? args.operands[2].as<const float>() : nullptr;
}

// The address of the element number `first`.
const void* from_element(const TensorView& view, std::int64_t first) {
  return view.as<const std::byte>() + first * size_of(view.dtype());
}

// expert_linear with streamed=1, for experts with a row or two each: one product per expert, one after the other.
Kernel streamed(const KernelArgs& args) {
  const TensorView &x = args.operands[0], &w = args.operands[1];
  const std::int64_t n = w.shape()[1], k = w.shape()[2], size = size_of(x.dtype());
  const cpu::FilledRows filled(args.operands.back(), x.shape()[1]);
  const float* bias = bias_of(args);
  return [=, dtype = x.dtype(), from = x.as<const std::byte>(), weights = w.as<const std::byte>(),
          to = args.results[0].as<std::byte>()]() -> Status {
    for (std::int64_t e = 0; e < filled.experts(); ++e) {
      const std::int64_t begin = filled.begin(e), rows = filled.end(e) - begin;
      if (rows > 0)
        backend::cpu::row_product(rows, n, k, dtype, from + begin * k * size, weights + e * n * k * size,
                                  bias ? bias + e * n : nullptr, to + begin * n * size);
    }
    return {};
  };
}

// With the attribute columns, the product of some rows of each expert's weights, at their place in the whole.
Kernel bind(const KernelArgs& args) {
  if (args.attributes.integer("streamed", 0)) return streamed(args);
  const TensorView &x = args.operands[0], &w = args.operands[1], &y = args.results[0];
  const float* bias = bias_of(args);
  const std::int64_t all = w.shape()[1], k = w.shape()[2], columns = y.shape()[2];
  const std::int64_t first = columns < all ? args.attributes.integer("part", 0) * columns : 0;
  GroupedMatmulDesc desc = extents(GroupedRows::m, x.shape()[0], x.shape()[1], columns, k, x.dtype(), x.dtype());
  desc.product.trans_b = true;
  if (bias) desc.product.bias = DType::f32;
  desc.stride_b = all * k;
  desc.stride_bias = all;
  return product(desc, {args.operands.back(), x.shape()[1]}, x.data, from_element(w, first * k),
                 bias ? bias + first : nullptr, y.data);
}

Kernel bind_dx(const KernelArgs& args) {
  const TensorView &dy = args.operands[0], &w = args.operands[1], &dx = args.results[0];
  const std::int64_t n = w.shape()[1], all = w.shape()[2], columns = dx.shape()[2];
  const std::int64_t first = columns < all ? args.attributes.integer("part", 0) * columns : 0;
  GroupedMatmulDesc desc = extents(GroupedRows::m, dy.shape()[0], dy.shape()[1], columns, n, dy.dtype(), dy.dtype());
  desc.product.ldb = all;
  desc.stride_b = n * all;
  return product(desc, {args.operands[2], dy.shape()[1]}, dy.data, from_element(w, first), nullptr, dx.data);
}

// db f32[E,N] = the sums of dy's filled rows [E,R,N]. Threads share the columns, so each column is summed in row order.
template <class T>
void bias_gradient(const cpu::FilledRows& filled, std::int64_t n, const T* dy, float* db, bool accumulate) {
  const std::int64_t column_blocks = (n + cpu::block - 1) / cpu::block;
  cpu::parallel_for(filled.experts() * column_blocks, 1, [&](std::int64_t first, std::int64_t last) {
    while (first < last) {  // this thread's blocks of one expert at once
      const std::int64_t e = first / column_blocks, next = std::min(last, (e + 1) * column_blocks);
      const std::int64_t begin = (first - e * column_blocks) * cpu::block;
      const std::int64_t end = std::min(n, (next - e * column_blocks) * cpu::block);
      cpu::add_rows(filled.end(e) - filled.begin(e), end - begin, n, dy + filled.begin(e) * n + begin,
                    db + e * n + begin, accumulate);
      first = next;
    }
  });
}

Kernel bind_dw(const KernelArgs& args) {
  const TensorView &dy = args.operands[0], &x = args.operands[1];
  const std::int64_t n = dy.shape()[2], k = x.shape()[2];
  const bool accumulate = args.has(3);
  GroupedMatmulDesc desc = extents(GroupedRows::k, dy.shape()[0], n, k, dy.shape()[1], dy.dtype(), DType::f32);
  desc.product.trans_a = true;
  desc.product.accumulate = accumulate;
  desc.stride_c = n * k;
  const cpu::FilledRows filled(args.operands[2], dy.shape()[1]);
  const Kernel weights = product(desc, filled, dy.data, x.data, nullptr, args.results[0].data);
  if (args.results.size() == 1) return weights;
  float* db = args.results[1].as<float>();
  return cpu::by_dtype(dy.dtype(), [&]<class T>(T) -> Kernel {
    const T* gradient = dy.as<T>();
    return [=]() -> Status {  // the bias first: the product then finds dy in the cache
      bias_gradient(filled, n, gradient, db, accumulate);
      return weights();
    };
  });
}

const CpuKernel table[] = {
    {"expert_linear", bind}, {"expert_product", bind}, {"expert_linear_dx", bind_dx}, {"expert_linear_dw", bind_dw}};

}  // namespace

std::span<const CpuKernel> expert_linear_cpu() { return table; }

}  // namespace lancet::ops
