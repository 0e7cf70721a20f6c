// Dense layers in bf16 by cuBLASLt with GELU (tanh form) in its epilogue; in f32, or if it has no algorithm for that,
// or if that was measured as slower, by a product and an element-wise kernel. Experts by our own grouped products.
#include <memory>

#include "lancet/backend/cuda/matmul.h"
#include "ops/device/map.h"
#include "ops/moe/expert_linear/bind_product.h"
#include "ops/nn/gelu/math.h"
#include "ops/nn/linear/rounded_bias.h"

namespace lancet::ops {
namespace {

using backend::cuda::Activation;
using backend::cuda::MatmulCall;
using backend::cuda::MatmulDesc;
using backend::cuda::MatmulOperands;

struct Product {
  MatmulCall product;
  device::BiasRounding round_bias;
  Kernel after;  // null: the product does it all
  Status operator()() const {
    LANCET_TRY(round_bias(*product.stream));
    LANCET_TRY(product());
    return after ? after() : Status();
  }
};

// What a GELU of our own does to the plain product of a call, and where that product is.
struct Activate {
  void* (*plain_result)(const MatmulOperands&);
  Kernel (*bind)(const KernelArgs& element_wise, const MatmulOperands&);
};

// The plain product, with GELU, or its gradient, as a kernel of its own.
Product apart(const KernelArgs& args, MatmulCall call, const Activate& activate) {
  KernelArgs element_wise = args;
  element_wise.stream = call.stream;
  element_wise.operands = {{call.operands.c, {call.desc.result, {call.desc.m, call.desc.n}}}};
  Kernel after = activate.bind(element_wise, call.operands);
  call.operands.c = activate.plain_result(call.operands);
  return {std::move(call), {}, std::move(after)};
}

// Takes the fused product for bf16 only: cuBLASLt does not say how exact its GELU is, and in f32 one of our own meets
// the tolerance of f32.
Kernel bind_fused_or_apart(const KernelArgs& args, const MatmulDesc& fused, const MatmulOperands& operands,
                           const device::BiasRounding& rounding, const Activate& activate) {
  MatmulDesc plain = fused;
  plain.activation = Activation::none;
  if (fused.operands == DType::bf16) {
    const backend::cuda::Unfused unfused{plain, 0,
                                         [&](const MatmulCall& call) -> Kernel { return apart(args, call, activate); }};
    if (auto product = backend::cuda::make_fused_matmul(fused, operands, *args.stream, unfused))
      return Product{{std::move(product), fused, operands, args.stream, args.workspace}, rounding, nullptr};
  }
  MatmulOperands without = operands;
  without.c = activate.plain_result(operands);
  auto product = backend::cuda::make_matmul(plain, without, *args.stream);
  if (!product.ok()) return [error = product.error()]() -> Status { return error; };
  Product made = apart(args, {std::move(*product), fused, operands, args.stream, args.workspace}, activate);
  made.round_bias = rounding;
  return made;
}

template <class T>
Kernel activate(const KernelArgs& args, const MatmulOperands& o) {
  return device::bind_map(args, -1, Gelu{}, static_cast<T*>(o.c), static_cast<const T*>(o.argument));
}
template <class T>
Kernel activate_dx(const KernelArgs& args, const MatmulOperands& o) {
  return device::bind_map(args, -1, GeluGradient{}, static_cast<T*>(o.c), static_cast<const T*>(o.c),
                          static_cast<const T*>(o.argument));
}

Kernel bind_linear_gelu(const KernelArgs& args) {
  const TensorView &x = args.operands[0], &w = args.operands[1], &h = args.results[0], &y = args.results[1];
  MatmulDesc desc;
  desc.m = x.shape().rows(), desc.n = w.shape()[0], desc.k = w.shape()[1];
  desc.operands = desc.result = x.dtype();
  desc.trans_b = true;
  desc.bias = args.has(2);
  desc.activation = Activation::gelu;
  desc.parts = args.attributes.integer("parts", 1);
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
    const auto plain_result = [](const MatmulOperands& o) { return o.argument; };
    return bind_fused_or_apart(args, desc, operands, rounding, {plain_result, activate<T>});
  });
}
std::size_t workspace_linear_gelu(const KernelArgs& args) {
  return backend::cuda::matmul_workspace_bytes + std::size_t(args.operands[1].shape()[0]) * sizeof(bf16);
}

Kernel bind_linear_gelu_dx(const KernelArgs& args) {
  const TensorView &dy = args.operands[0], &w = args.operands[1], &h = args.operands[2], &dh = args.results[0];
  MatmulDesc desc;
  desc.m = dy.shape().rows(), desc.n = w.shape()[1], desc.k = w.shape()[0];
  desc.operands = desc.result = dy.dtype();
  desc.activation = Activation::gelu_gradient;
  desc.parts = args.attributes.integer("parts", 1);
  MatmulOperands operands;
  operands.a = dy.data, operands.b = w.data, operands.c = dh.data, operands.argument = h.data;
  return device::by_dtype(dy.dtype(), [&]<class T>(T) {
    const auto plain_result = [](const MatmulOperands& o) { return o.c; };
    return bind_fused_or_apart(args, desc, operands, {}, {plain_result, activate_dx<T>});
  });
}
std::size_t workspace_linear_gelu_dx(const KernelArgs&) { return backend::cuda::matmul_workspace_bytes; }

Kernel bind_experts(const KernelArgs& args) {
  return device::by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    auto p = device::grouped_operands<T>(args, args.operands[3]);
    p.bias = args.operands[2].as<float>();
    p.width = p.all_columns = int(args.operands[1].shape()[1]), p.depth = int(args.operands[1].shape()[2]);
    p.argument = args.results[0].as<T>(), p.c = args.results[1].data;
    return device::bind_product<device::ExpertProduct::forward, device::Epilogue::gelu>(args, p);
  });
}

Kernel bind_experts_dx(const KernelArgs& args) {
  return device::by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    auto p = device::grouped_operands<T>(args, args.operands[3]);
    p.width = p.all_columns = int(args.operands[1].shape()[2]), p.depth = int(args.operands[1].shape()[1]);
    p.argument = args.operands[2].as<T>();
    return device::bind_product<device::ExpertProduct::dx, device::Epilogue::gelu>(args, p);
  });
}

}  // namespace

std::span<const DeviceKernel> linear_gelu_cuda() {
  static const DeviceKernel table[] = {{"linear_gelu", bind_linear_gelu, workspace_linear_gelu},
                                       {"linear_dx_gelu", bind_linear_gelu_dx, workspace_linear_gelu_dx},
                                       {"expert_linear_gelu", bind_experts},
                                       {"expert_linear_dx_gelu", bind_experts_dx}};
  return table;
}

}  // namespace lancet::ops
