// Dense layers by cuBLASLt with GELU (tanh form) in its epilogue; if it has no algorithm for that, by a product and an
// element-wise kernel. Experts by our own grouped products.
#include <memory>

#include "lancet/backend/cuda/matmul.h"
#include "ops/device/map.h"
#include "ops/expert_linear/bind_product.h"
#include "ops/gelu/functors.h"
#include "ops/linear/rounded_bias.h"

namespace lancet::ops {
namespace {

using backend::cuda::Activation;
using backend::cuda::MatmulDesc;
using backend::cuda::MatmulOperands;

struct Product {
  std::shared_ptr<backend::cuda::Matmul> product;  // shared: a Kernel is copyable
  backend::Stream* stream;
  MatmulOperands operands;
  std::byte* workspace;
  device::BiasRounding round_bias;
  Kernel after;  // null: the product does it all
  Status operator()() const {
    LANCET_TRY(round_bias(*stream));
    LANCET_TRY(product->run(*stream, operands, workspace));
    return after ? after() : Status();
  }
};

// Binds the fused product. If cuBLASLt has none, binds the plain product, with its result at without_c, followed by the
// kernel that make_after() returns.
template <class MakeAfter>
Kernel with_activation(const KernelArgs& args, MatmulDesc desc, MatmulOperands operands, void* without_c,
                       const device::BiasRounding& rounding, const MakeAfter& make_after) {
  auto fused = backend::cuda::make_matmul(desc, operands);
  if (fused.ok()) return Product{std::move(*fused), args.stream, operands, args.workspace, rounding, nullptr};
  desc.activation = Activation::none;
  operands.c = without_c;
  auto plain = backend::cuda::make_matmul(desc, operands);
  if (!plain.ok()) return [error = plain.error()]() -> Status { return error; };
  return Product{std::move(*plain), args.stream, operands, args.workspace, rounding, make_after()};
}

// The arguments of an element-wise kernel over all of a tensor.
KernelArgs element_wise(const KernelArgs& args, const TensorView& of) {
  KernelArgs part = args;
  part.operands = {of};
  return part;
}

Kernel bind(const KernelArgs& args) {
  const TensorView &x = args.operands[0], &w = args.operands[1], &h = args.results[0], &y = args.results[1];
  MatmulDesc desc;
  desc.m = x.shape().rows(), desc.n = w.shape()[0], desc.k = w.shape()[1];
  desc.operands = desc.result = x.dtype();
  desc.trans_b = true;
  desc.bias = args.has(2);
  desc.activation = Activation::gelu;
  MatmulOperands operands;
  operands.a = x.data, operands.b = w.data, operands.c = y.data, operands.argument = h.data;
  device::BiasRounding rounding;
  if (desc.bias) {
    operands.bias = args.operands[2].data;
    if (x.dtype() == DType::bf16) {  // the epilogue requires the result's type
      auto* rounded = reinterpret_cast<bf16*>(args.workspace + backend::cuda::matmul_workspace_bytes);
      rounding = device::round_bias(args, 2, rounded, operands.bias);
    }
  }
  return device::by_dtype(x.dtype(), [&]<class T>(T) {
    return with_activation(args, desc, operands, h.data, rounding, [&] {
      return device::bind_map(element_wise(args, h), -1, device::Gelu{}, y.as<T>(), static_cast<const T*>(h.data));
    });
  });
}
std::size_t workspace(const KernelArgs& args) {
  return backend::cuda::matmul_workspace_bytes + std::size_t(args.operands[1].shape()[0]) * sizeof(bf16);
}

Kernel bind_dx(const KernelArgs& args) {
  const TensorView &dy = args.operands[0], &w = args.operands[1], &h = args.operands[2], &dh = args.results[0];
  MatmulDesc desc;
  desc.m = dy.shape().rows(), desc.n = w.shape()[1], desc.k = w.shape()[0];
  desc.operands = desc.result = dy.dtype();
  desc.activation = Activation::gelu_gradient;
  MatmulOperands operands;
  operands.a = dy.data, operands.b = w.data, operands.c = dh.data, operands.argument = h.data;
  return device::by_dtype(dy.dtype(), [&]<class T>(T) {
    return with_activation(args, desc, operands, dh.data, {}, [&] {
      return device::bind_map(element_wise(args, dh), -1, device::GeluGradient{}, dh.as<T>(),
                              static_cast<const T*>(dh.data), static_cast<const T*>(h.data));
    });
  });
}
std::size_t workspace_dx(const KernelArgs&) { return backend::cuda::matmul_workspace_bytes; }

Kernel bind_experts(const KernelArgs& args) {
  return device::by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    auto p = device::grouped_operands<T>(args, args.operands[3]);
    p.bias = args.operands[2].as<float>();
    p.width = int(args.operands[1].shape()[1]), p.depth = int(args.operands[1].shape()[2]);
    p.argument = args.results[0].as<T>(), p.c = args.results[1].data;
    return device::bind_product<device::ExpertProduct::forward, true>(args, p);
  });
}

Kernel bind_experts_dx(const KernelArgs& args) {
  return device::by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    auto p = device::grouped_operands<T>(args, args.operands[3]);
    p.width = int(args.operands[1].shape()[2]), p.depth = int(args.operands[1].shape()[1]);
    p.argument = args.operands[2].as<T>();
    return device::bind_product<device::ExpertProduct::dx, true>(args, p);
  });
}

const DeviceKernel table[] = {{"linear_gelu", bind, workspace},
                              {"linear_dx_gelu", bind_dx, workspace_dx},
                              {"expert_linear_gelu", bind_experts},
                              {"expert_linear_dx_gelu", bind_experts_dx}};

}  // namespace

std::span<const DeviceKernel> linear_gelu_cuda() { return table; }

}  // namespace lancet::ops
