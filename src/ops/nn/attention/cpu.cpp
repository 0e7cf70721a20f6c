#include "lancet/backend/cpu/attention.h"

#include "ops/cpu.h"

namespace lancet::ops {
namespace {

using backend::cpu::AttentionDesc;

AttentionDesc describe(const TensorView& qkv, const ir::Attributes& attributes) {
  const Shape& shape = qkv.shape();  // [B, S, (group + 1 + 1) * heads * head_dim]
  const std::int64_t heads = attributes.integer("heads"), group = attributes.integer("group", 1);
  return {.batch = shape[0],
          .sequence = shape[1],
          .heads = heads,
          .head_dim = shape[2] / ((group + 2) * heads),
          .dtype = qkv.dtype(),
          .group = group};
}

Kernel bind(const KernelArgs& args) {
  const AttentionDesc desc = describe(args.operands[0], args.attributes);
  const void* qkv = args.operands[0].data;
  void *out = args.results[0].data, *workspace = args.workspace;
  float* lse = args.results[1].as<float>();
  return [=]() -> Status {
    backend::cpu::attention_forward(desc, qkv, out, lse, workspace);
    return {};
  };
}
std::size_t workspace(const KernelArgs& args) {
  return backend::cpu::attention_forward_workspace_bytes(describe(args.operands[0], args.attributes),
                                                         backend::cpu::threads());
}

Kernel bind_dx(const KernelArgs& args) {
  const AttentionDesc desc = describe(args.operands[1], args.attributes);
  const void *dout = args.operands[0].data, *qkv = args.operands[1].data, *out = args.operands[2].data;
  const float* lse = args.operands[3].as<float>();
  void *dqkv = args.results[0].data, *workspace = args.workspace;
  return [=]() -> Status {
    backend::cpu::attention_backward(desc, dout, qkv, out, lse, dqkv, workspace);
    return {};
  };
}
std::size_t workspace_dx(const KernelArgs& args) {
  return backend::cpu::attention_backward_workspace_bytes(describe(args.operands[1], args.attributes),
                                                          backend::cpu::threads());
}

const CpuKernel table[] = {{"attention", bind, workspace}, {"attention_dx", bind_dx, workspace_dx}};

}  // namespace

std::span<const CpuKernel> attention_cpu() { return table; }

}  // namespace lancet::ops
