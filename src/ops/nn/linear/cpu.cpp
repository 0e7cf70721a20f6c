#include <memory>

#include "lancet/backend/cpu/matmul.h"
#include "ops/cpu.h"

namespace lancet::ops {
namespace {

using backend::cpu::Matmul;
using backend::cpu::MatmulDesc;

MatmulDesc extents(std::int64_t m, std::int64_t n, std::int64_t k, DType operands, DType result) {
  return {.m = m, .n = n, .k = k, .a = operands, .b = operands, .c = result};
}

Kernel product(const MatmulDesc& desc, const void* a, const void* b, const void* bias, void* c) {
  const std::shared_ptr<Matmul> matmul = backend::cpu::make_matmul(desc);  // shared: a Kernel is copyable
  return [=]() -> Status {
    matmul->run(a, b, bias, c);
    return {};
  };
}

Kernel bind(const KernelArgs& args) {
  const TensorView &x = args.operands[0], &w = args.operands[1];
  if (args.attributes.integer("streamed", 0)) {
    const std::int64_t m = x.shape().rows(), n = w.shape()[0], k = w.shape()[1];
    const float* b = args.has(2) ? args.operands[2].as<float>() : nullptr;
    return [=, dtype = x.dtype(), from = x.data, weights = w.data, to = args.results[0].data]() -> Status {
      backend::cpu::row_product(m, n, k, dtype, from, weights, b, to);
      return {};
    };
  }
  MatmulDesc desc = extents(x.shape().rows(), w.shape()[0], w.shape()[1], x.dtype(), x.dtype());
  desc.trans_b = true;
  if (args.has(2)) desc.bias = DType::f32;
  return product(desc, x.data, w.data, args.has(2) ? args.operands[2].data : nullptr, args.results[0].data);
}

Kernel bind_dx(const KernelArgs& args) {
  const TensorView &dy = args.operands[0], &w = args.operands[1];
  const MatmulDesc desc = extents(dy.shape().rows(), w.shape()[1], w.shape()[0], dy.dtype(), dy.dtype());
  return product(desc, dy.data, w.data, nullptr, args.results[0].data);
}

Kernel bind_dw(const KernelArgs& args) {
  const TensorView &dy = args.operands[0], &x = args.operands[1];
  const std::int64_t rows = x.shape().rows(), n = dy.shape().back();
  const bool accumulate = args.has(2);
  MatmulDesc desc = extents(n, x.shape().back(), rows, dy.dtype(), DType::f32);
  desc.trans_a = true;
  desc.accumulate = accumulate;
  const Kernel weights = product(desc, dy.data, x.data, nullptr, args.results[0].data);
  if (args.results.size() == 1) return weights;
  float* db = args.results[1].as<float>();
  return cpu::by_dtype(dy.dtype(), [&]<class T>(T) -> Kernel {
    const T* gradient = dy.as<T>();
    return [=]() -> Status {  // the bias first: the product then finds dy in the cache
      cpu::parallel_for(n, cpu::block, [&](std::int64_t begin, std::int64_t end) {
        cpu::add_rows(rows, end - begin, n, gradient + begin, db + begin, accumulate);
      });
      return weights();
    };
  });
}

const CpuKernel table[] = {{"linear", bind}, {"linear_dx", bind_dx}, {"linear_dw", bind_dw}};

}  // namespace

std::span<const CpuKernel> linear_cpu() { return table; }

}  // namespace lancet::ops
