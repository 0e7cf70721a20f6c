// Attention by cuDNN for bf16 heads of 8, 16, ... features, else by our own kernels (plain_attention.h).
#include <cmath>
#include <memory>

#include "lancet/backend/cuda/attention.h"
#include "ops/device/pack.h"
#include "plain_attention.h"

namespace lancet::ops {
namespace {

using backend::cuda::Attention;
using backend::cuda::AttentionDesc;
using backend::cuda::AttentionTensors;

AttentionDesc describe(const TensorView& qkv, const ir::Attributes& attributes, bool backward) {
  const Shape& shape = qkv.shape();  // [B, S, 3 * heads * head_dim]
  const std::int64_t heads = attributes.integer("heads");
  return {.batch = shape[0],
          .sequence = shape[1],
          .heads = heads,
          .head_dim = shape[2] / (3 * heads),
          .backward = backward,
          .deterministic = attributes.integer("deterministic", 1) != 0};
}

// cuDNN's attention, or as an error the reason why cuDNN does not support it.
Result<std::shared_ptr<Attention>> library_attention(const AttentionDesc& desc, DType dtype) {
  if (dtype != DType::bf16) return internal_error("cuDNN's engines take bf16, found " + std::string(name(dtype)));
  if (desc.head_dim % 8)
    return internal_error("cuDNN's engines take heads of 8, 16, ... features, found " + std::to_string(desc.head_dim));
  LANCET_ASSIGN(auto made, backend::cuda::make_attention(desc));
  return std::shared_ptr<Attention>(std::move(made));
}

// The warning about a fallback:
// "attention backward over bf16[8,512,3,12,60]: by plain kernels, which are slow, since ..."
std::string slow_way(const AttentionDesc& desc, DType dtype, const std::string& why) {
  std::string text = desc.backward ? "attention backward over " : "attention over ";
  text.append(name(dtype)).append("[");
  for (const std::int64_t length : {desc.batch, desc.sequence, std::int64_t{3}, desc.heads, desc.head_dim})
    text.append(text.back() == '[' ? "" : ",").append(std::to_string(length));
  return text + "]: by plain kernels, which are slow, since " + why;
}

std::size_t workspace_bytes(const AttentionDesc& desc, DType dtype) {
  if (const auto attention = library_attention(desc, dtype); attention.ok()) return (*attention)->workspace_bytes();
  return desc.backward ? std::size_t(desc.batch * desc.heads * desc.sequence) * sizeof(float) : 0;  // row_sums
}

struct ByLibrary {
  std::shared_ptr<Attention> attention;  // shared: a Kernel is copyable
  backend::Stream* stream;
  AttentionTensors tensors;
  std::byte* workspace;
  Status operator()() const { return attention->run(*stream, tensors, workspace); }
};

Kernel bind_pass(const KernelArgs& args, const AttentionDesc& desc, DType dtype, const AttentionTensors& t) {
  auto attention = library_attention(desc, dtype);
  if (attention.ok()) return ByLibrary{*attention, args.stream, t, args.workspace};
  if (args.remarks) args.remarks->insert(slow_way(desc, dtype, attention.error().message));
  return device::by_dtype(dtype, [&]<class T>(T) -> Kernel {
    const device::PlainAttention<T> p{static_cast<const T*>(t.qkv),
                                      static_cast<const T*>(t.dout),
                                      static_cast<T*>(t.out),
                                      static_cast<T*>(t.dqkv),
                                      t.lse,
                                      reinterpret_cast<float*>(args.workspace),
                                      desc.sequence,
                                      desc.heads,
                                      desc.head_dim,
                                      1.f / std::sqrt(float(desc.head_dim))};
    const std::int64_t blocks = desc.batch * desc.heads * desc.sequence;
    if (!desc.backward) return device::run_steps(args.stream, device::Step{blocks, device::AttentionForward<T>{p}});
    return device::run_steps(args.stream, device::Step{blocks, device::AttentionQueryGradient<T>{p}},
                             device::Step{blocks, device::AttentionKeyGradient<T>{p}});
  });
}

Kernel bind(const KernelArgs& args) {
  const TensorView& qkv = args.operands[0];
  AttentionTensors t;
  t.qkv = qkv.data, t.out = args.results[0].data, t.lse = args.results[1].as<float>();
  return bind_pass(args, describe(qkv, args.attributes, false), qkv.dtype(), t);
}
std::size_t workspace(const KernelArgs& args) {
  return workspace_bytes(describe(args.operands[0], args.attributes, false), args.operands[0].dtype());
}

Kernel bind_dx(const KernelArgs& args) {
  const TensorView& qkv = args.operands[1];
  AttentionTensors t;
  t.dout = args.operands[0].data, t.qkv = qkv.data, t.out = args.operands[2].data;
  t.lse = args.operands[3].as<float>(), t.dqkv = args.results[0].data;
  return bind_pass(args, describe(qkv, args.attributes, true), qkv.dtype(), t);
}
std::size_t workspace_dx(const KernelArgs& args) {
  return workspace_bytes(describe(args.operands[1], args.attributes, true), args.operands[1].dtype());
}

const DeviceKernel table[] = {{"attention", bind, workspace}, {"attention_dx", bind_dx, workspace_dx}};

}  // namespace

std::span<const DeviceKernel> attention_cuda() { return table; }

}  // namespace lancet::ops
