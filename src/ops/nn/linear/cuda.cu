// Linear layers by cuBLASLt, with bias and bias gradient in its epilogues. Separate kernels do what the epilogues
// cannot: they round an f32 bias to the type of the result, which an epilogue requires (rounded_bias.h), and they add a
// bias gradient onto an accumulator, which an epilogue only overwrites (column_sums.h). They also sum the whole bias
// gradient, where that was measured as faster or cuBLASLt has no algorithm for it.
#include <memory>

#include "lancet/backend/cuda/matmul.h"
#include "ops/device/partial_sums.h"
#include "rounded_bias.h"

namespace lancet::ops {
namespace {

using backend::cuda::MatmulCall;
using backend::cuda::MatmulDesc;
using backend::cuda::MatmulOperands;

MatmulDesc extents(std::int64_t m, std::int64_t n, std::int64_t k, DType operands, DType result) {
  MatmulDesc desc;
  desc.m = m, desc.n = n, desc.k = k;
  desc.operands = operands;
  desc.result = result;
  return desc;
}

// The workspace_linear begins with the part of cuBLASLt; returns the rest, which is that of our kernels.
std::byte* own_part(std::byte* workspace_linear) { return workspace_linear + backend::cuda::matmul_workspace_bytes; }

struct Linear {
  MatmulCall product;
  device::BiasRounding round_bias;
  Status operator()() const {
    LANCET_TRY(round_bias(*product.stream));
    return product();
  }
};

Kernel bind_product(const KernelArgs& args, const MatmulDesc& desc, const MatmulOperands& operands,
                    device::BiasRounding rounding) {
  auto product = backend::cuda::make_matmul(desc, operands, *args.stream);
  if (!product.ok()) return [error = product.error()]() -> Status { return error; };
  return Linear{{std::move(*product), desc, operands, args.stream, args.workspace}, std::move(rounding)};
}

Kernel bind_linear(const KernelArgs& args) {
  const TensorView &x = args.operands[0], &w = args.operands[1];
  MatmulDesc desc = extents(x.shape().rows(), w.shape()[0], w.shape()[1], x.dtype(), x.dtype());
  desc.trans_b = true;
  desc.bias = args.has(2);
  desc.parts = args.attributes.integer("parts", 1);
  MatmulOperands operands;
  operands.a = x.data, operands.b = w.data, operands.c = args.results[0].data;
  device::BiasRounding rounding;
  if (desc.bias) {
    operands.bias = args.operands[2].data;
    if (x.dtype() == DType::bf16)
      rounding = device::round_bias(args, 2, reinterpret_cast<bf16*>(own_part(args.workspace)), operands.bias);
  }
  return bind_product(args, desc, operands, std::move(rounding));
}
std::size_t workspace_linear(const KernelArgs& args) {
  return backend::cuda::matmul_workspace_bytes + std::size_t(args.operands[1].shape()[0]) * sizeof(bf16);
}

Kernel bind_linear_dx(const KernelArgs& args) {
  const TensorView &dy = args.operands[0], &w = args.operands[1];
  MatmulDesc desc = extents(dy.shape().rows(), w.shape()[1], w.shape()[0], dy.dtype(), dy.dtype());
  desc.parts = args.attributes.integer("parts", 1);
  MatmulOperands operands;
  operands.a = dy.data, operands.b = w.data, operands.c = args.results[0].data;
  return bind_product(args, desc, operands, {});
}
std::size_t workspace_linear_dx(const KernelArgs&) { return backend::cuda::matmul_workspace_bytes; }

template <class T>
struct LinearGradient {
  MatmulCall product;
  device::ColumnSums<T> parts;  // not launched if rows is 0: no bias gradient, or the product computes it
  device::AddParts add;         // not launched if parts is null: likewise
  Status operator()() const {
    if (parts.rows) LANCET_TRY(device::launch(*product.stream, parts.blocks(), parts));
    LANCET_TRY(product());
    if (add.parts) LANCET_TRY(device::launch(*product.stream, add.blocks(), add));
    return {};
  }
};

// dW by the product, db (to call.operands.row_sums) by kernels of our own.
template <class T>
Kernel with_column_sums(const MatmulCall& call) {
  const MatmulDesc& desc = call.desc;
  float* parts = reinterpret_cast<float*>(own_part(call.workspace));
  const T* dy = static_cast<const T*>(call.operands.a);
  const bool wide = device::aligned_rows<T>(desc.m) && device::aligned(dy);
  LinearGradient<T> kernel{call, {dy, parts, desc.k, desc.m, wide}, {}};
  kernel.add = {parts, kernel.parts.parts(), desc.m, desc.accumulate, static_cast<float*>(call.operands.row_sums)};
  return kernel;
}
// dW and db by the product, whose epilogue only overwrites; with an accumulator a kernel adds db onto it.
template <class T>
Kernel with_row_sums(const MatmulCall& call) {
  LinearGradient<T> kernel{call, {}, {}};
  if (!call.desc.accumulate) return kernel;
  auto* parts = reinterpret_cast<float*>(own_part(call.workspace));
  kernel.add = {parts, 1, call.desc.m, true, static_cast<float*>(call.operands.row_sums)};
  kernel.product.operands.row_sums = parts;
  return kernel;
}
std::size_t parts_bytes(std::int64_t rows, std::int64_t columns) {
  const device::ColumnSums<float> sums{nullptr, nullptr, rows, columns, true};
  return std::size_t(sums.parts() * columns) * sizeof(float);
}

Kernel bind_linear_dw(const KernelArgs& args) {
  const TensorView &dy = args.operands[0], &x = args.operands[1];
  MatmulDesc plain = extents(dy.shape().back(), x.shape().back(), x.shape().rows(), dy.dtype(), DType::f32);
  plain.trans_a = true;
  plain.accumulate = args.has(2);
  MatmulOperands operands;
  operands.a = dy.data, operands.b = x.data, operands.c = args.results[0].data;
  if (args.results.size() == 1) return bind_product(args, plain, operands, {});
  MatmulDesc fused = plain;
  fused.row_sums = true;
  operands.row_sums = args.results[1].data;
  return device::by_dtype(dy.dtype(), [&]<class T>(T) -> Kernel {
    const backend::cuda::Unfused unfused{plain, parts_bytes(plain.k, plain.m), with_column_sums<T>, with_row_sums<T>};
    if (auto product = backend::cuda::make_fused_matmul(fused, operands, *args.stream, unfused))
      return with_row_sums<T>({std::move(product), fused, operands, args.stream, args.workspace});
    auto product = backend::cuda::make_matmul(plain, operands, *args.stream);
    if (!product.ok()) return [error = product.error()]() -> Status { return error; };
    return with_column_sums<T>({std::move(*product), fused, operands, args.stream, args.workspace});
  });
}
std::size_t workspace_linear_dw(const KernelArgs& args) {
  const TensorView& dy = args.operands[0];
  return backend::cuda::matmul_workspace_bytes + parts_bytes(dy.shape().rows(), dy.shape().back());
}

}  // namespace

std::span<const DeviceKernel> linear_cuda() {
  static const DeviceKernel table[] = {{"linear", bind_linear, workspace_linear},
                                       {"linear_dx", bind_linear_dx, workspace_linear_dx},
                                       {"linear_dw", bind_linear_dw, workspace_linear_dw}};
  return table;
}

}  // namespace lancet::ops
