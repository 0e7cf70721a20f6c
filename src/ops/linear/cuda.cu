// Linear layers by cuBLASLt, with bias and bias gradient in its epilogues. Separate kernels do what the epilogues
// cannot: they round an f32 bias to the type of the result, which an epilogue requires (rounded_bias.h), and they add a
// bias gradient onto an accumulator, which an epilogue only overwrites (column_sums.h).
#include <memory>

#include "lancet/backend/cuda/matmul.h"
#include "ops/device/partial_sums.h"
#include "rounded_bias.h"

namespace lancet::ops {
namespace {

using backend::cuda::Matmul;
using backend::cuda::MatmulDesc;
using backend::cuda::MatmulOperands;
using Product = std::shared_ptr<Matmul>;  // shared: a Kernel is copyable

MatmulDesc extents(std::int64_t m, std::int64_t n, std::int64_t k, DType operands, DType result) {
  MatmulDesc desc;
  desc.m = m, desc.n = n, desc.k = k;
  desc.operands = operands;
  desc.result = result;
  return desc;
}

// The workspace begins with the part of cuBLASLt; returns the rest, which is that of our kernels.
std::byte* own_part(const KernelArgs& args) { return args.workspace + backend::cuda::matmul_workspace_bytes; }

// A kernel that returns the error of bind.
Kernel failing(Error error) {
  return [error = std::move(error)]() -> Status { return error; };
}

struct Linear {
  Product product;
  backend::Stream* stream;
  MatmulOperands operands;
  std::byte* workspace;
  device::BiasRounding round_bias;
  Status operator()() const {
    LANCET_TRY(round_bias(*stream));
    return product->run(*stream, operands, workspace);
  }
};

Kernel bind(const KernelArgs& args) {
  const TensorView &x = args.operands[0], &w = args.operands[1];
  MatmulDesc desc = extents(x.shape().rows(), w.shape()[0], w.shape()[1], x.dtype(), x.dtype());
  desc.trans_b = true;
  desc.bias = args.has(2);
  MatmulOperands operands;
  operands.a = x.data, operands.b = w.data, operands.c = args.results[0].data;
  device::BiasRounding rounding;
  if (desc.bias) {
    operands.bias = args.operands[2].data;
    if (x.dtype() == DType::bf16)
      rounding = device::round_bias(args, 2, reinterpret_cast<bf16*>(own_part(args)), operands.bias);
  }
  auto product = backend::cuda::make_matmul(desc, operands);
  if (!product.ok()) return failing(product.error());
  return Linear{std::move(*product), args.stream, operands, args.workspace, std::move(rounding)};
}
std::size_t workspace(const KernelArgs& args) {
  return backend::cuda::matmul_workspace_bytes + std::size_t(args.operands[1].shape()[0]) * sizeof(bf16);
}

Kernel bind_dx(const KernelArgs& args) {
  const TensorView &dy = args.operands[0], &w = args.operands[1];
  const MatmulDesc desc = extents(dy.shape().rows(), w.shape()[1], w.shape()[0], dy.dtype(), dy.dtype());
  MatmulOperands operands;
  operands.a = dy.data, operands.b = w.data, operands.c = args.results[0].data;
  auto product = backend::cuda::make_matmul(desc, operands);
  if (!product.ok()) return failing(product.error());
  return Linear{std::move(*product), args.stream, operands, args.workspace, {}};
}
std::size_t workspace_dx(const KernelArgs&) { return backend::cuda::matmul_workspace_bytes; }

template <class T>
struct LinearGradient {
  Product product;
  backend::Stream* stream;
  MatmulOperands operands;
  std::byte* workspace;
  device::ColumnSums<T> parts;  // not launched if rows is 0: no bias gradient, or the product computes it
  device::AddParts add;         // not launched if parts is null: likewise
  Status operator()() const {
    if (parts.rows) LANCET_TRY(device::launch(*stream, parts.blocks(), parts));
    LANCET_TRY(product->run(*stream, operands, workspace));
    if (add.parts) LANCET_TRY(device::launch(*stream, add.blocks(), add));
    return {};
  }
};

Kernel bind_dw(const KernelArgs& args) {
  const TensorView &dy = args.operands[0], &x = args.operands[1];
  MatmulDesc desc = extents(dy.shape().back(), x.shape().back(), x.shape().rows(), dy.dtype(), DType::f32);
  desc.trans_a = true;
  desc.accumulate = args.has(2);
  desc.row_sums = args.results.size() > 1;
  MatmulOperands operands;
  operands.a = dy.data, operands.b = x.data, operands.c = args.results[0].data;
  float* db = desc.row_sums ? args.results[1].as<float>() : nullptr;
  float* parts = reinterpret_cast<float*>(own_part(args));
  return device::by_dtype(dy.dtype(), [&]<class T>(T) -> Kernel {
    LinearGradient<T> kernel{nullptr, args.stream, operands, args.workspace, {}, {}};
    if (desc.row_sums) {
      kernel.operands.row_sums = desc.accumulate ? parts : db;
      if (desc.accumulate) kernel.add = {parts, 1, desc.m, true, db};
      if (auto product = backend::cuda::make_matmul(desc, kernel.operands); product.ok()) {
        kernel.product = std::move(*product);
        return kernel;
      }
      kernel.parts = {dy.as<T>(), parts, desc.k, desc.m,
                      device::aligned_rows<T>(desc.m) && device::aligned(dy.as<T>())};
      kernel.add = {parts, kernel.parts.parts(), desc.m, desc.accumulate, db};
      desc.row_sums = false;
    }
    auto product = backend::cuda::make_matmul(desc, operands);
    if (!product.ok()) return failing(product.error());
    kernel.product = std::move(*product);
    return kernel;
  });
}
std::size_t workspace_dw(const KernelArgs& args) {
  const TensorView& dy = args.operands[0];
  const device::ColumnSums<float> sums{nullptr, nullptr, dy.shape().rows(), dy.shape().back(), true};
  return backend::cuda::matmul_workspace_bytes + std::size_t(sums.parts() * sums.columns) * sizeof(float);
}

const DeviceKernel table[] = {
    {"linear", bind, workspace}, {"linear_dx", bind_dx, workspace_dx}, {"linear_dw", bind_dw, workspace_dw}};

}  // namespace

std::span<const DeviceKernel> linear_cuda() { return table; }

}  // namespace lancet::ops
