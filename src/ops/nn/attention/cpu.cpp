#include "lancet/backend/cpu/attention.h"

#include "ops/cpu.h"

namespace lancet::ops {
namespace {

using backend::cpu::AttentionDesc;

// qkv, all: indices of operands.
AttentionDesc describe(const KernelArgs& args, std::size_t qkv, std::size_t all) {
  const Shape& shape = args.operands[qkv].shape();  // [B, S, (group + 1 + 1) * heads * head_dim]
  const ir::Attributes& attributes = args.attributes;
  const std::int64_t heads = attributes.integer("heads"), group = attributes.integer("group", 1);
  return {.batch = shape[0],
          .sequence = shape[1],
          .heads = heads,
          .head_dim = shape[2] / ((group + 2) * heads),
          .dtype = args.operands[qkv].dtype(),
          .group = group,
          .before = args.has(int(all)) ? args.operands[all].shape()[1] - shape[1] : 0};
}

Kernel bind(const KernelArgs& args) {
  const AttentionDesc desc = describe(args, 0, 1);
  const void *qkv = args.operands[0].data, *all = args.has(1) ? args.operands[1].data : qkv;
  void *out = args.results[0].data, *workspace = args.workspace;
  float* lse = args.results[1].as<float>();
  return [=]() -> Status {
    backend::cpu::attention_forward(desc, qkv, all, out, lse, workspace);
    return {};
  };
}
std::size_t workspace(const KernelArgs& args) {
  return backend::cpu::attention_forward_workspace_bytes(describe(args, 0, 1), backend::cpu::threads());
}

Kernel bind_dx(const KernelArgs& args) {
  const AttentionDesc desc = describe(args, 1, 4);
  const void *dout = args.operands[0].data, *qkv = args.operands[1].data, *out = args.operands[2].data;
  const void* all = args.has(4) ? args.operands[4].data : qkv;
  const float* lse = args.operands[3].as<float>();
  void *dqkv = args.results[0].data, *workspace = args.workspace;
  float* sums = args.has(4) ? args.results[1].as<float>() : nullptr;
  const bool add = args.has(5);
  return [=]() -> Status {
    backend::cpu::attention_backward(desc, dout, qkv, all, out, lse, dqkv, sums, add, workspace);
    return {};
  };
}
std::size_t workspace_dx(const KernelArgs& args) {
  return backend::cpu::attention_backward_workspace_bytes(describe(args, 1, 4), backend::cpu::threads());
}

const CpuKernel table[] = {{"attention", bind, workspace}, {"attention_dx", bind_dx, workspace_dx}};

}  // namespace

std::span<const CpuKernel> attention_cpu() { return table; }

}  // namespace lancet::ops
