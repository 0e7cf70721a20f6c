// On the CPU a fused op runs the kernels of its two ops one after the other, so results are the same bit for bit.
#include "lancet/base/check.h"
#include "lancet/ops/kernel.h"

namespace lancet::ops {
namespace {

KernelArgs part_of(const KernelArgs& args, std::string_view op, std::vector<TensorView> operands,
                   std::vector<TensorView> results) {
  KernelArgs part = args;
  part.op = op;
  part.operands = std::move(operands);
  part.results = std::move(results);
  return part;
}

Kernel one_after_the_other(const KernelArgs& first, const KernelArgs& second) {
  const CpuKernel *a = find_cpu_kernel(first.op), *b = find_cpu_kernel(second.op);
  LANCET_CHECK(a && b, "expected CPU kernels of {} and {}, found none", first.op, second.op);
  return [x = a->bind(first), y = b->bind(second)]() -> Status {
    LANCET_TRY(x());
    return y();
  };
}

// The workspace of the product; gelu needs none.
std::size_t workspace_of(const KernelArgs& product) {
  const CpuKernel* kernel = find_cpu_kernel(product.op);
  return kernel->workspace ? kernel->workspace(product) : 0;
}

KernelArgs product_of(const KernelArgs& args) { return part_of(args, "linear", args.operands, {args.results[0]}); }
Kernel bind(const KernelArgs& args) {
  return one_after_the_other(product_of(args), part_of(args, "gelu", {args.results[0]}, {args.results[1]}));
}
std::size_t workspace(const KernelArgs& args) { return workspace_of(product_of(args)); }

KernelArgs product_of_dx(const KernelArgs& args) {
  return part_of(args, "linear_dx", {args.operands[0], args.operands[1]}, args.results);
}
Kernel bind_dx(const KernelArgs& args) {
  return one_after_the_other(product_of_dx(args),
                             part_of(args, "gelu_dx", {args.results[0], args.operands[2]}, args.results));
}
std::size_t workspace_dx(const KernelArgs& args) { return workspace_of(product_of_dx(args)); }

KernelArgs product_of_experts(const KernelArgs& args) {
  return part_of(args, "expert_linear", args.operands, {args.results[0]});
}
Kernel bind_experts(const KernelArgs& args) {
  return one_after_the_other(product_of_experts(args),
                             part_of(args, "gelu", {args.results[0], args.operands[3]}, {args.results[1]}));
}
std::size_t workspace_experts(const KernelArgs& args) { return workspace_of(product_of_experts(args)); }

KernelArgs product_of_experts_dx(const KernelArgs& args) {
  return part_of(args, "expert_linear_dx", {args.operands[0], args.operands[1], args.operands[3]}, args.results);
}
Kernel bind_experts_dx(const KernelArgs& args) {
  return one_after_the_other(
      product_of_experts_dx(args),
      part_of(args, "gelu_dx", {args.results[0], args.operands[2], args.operands[3]}, args.results));
}
std::size_t workspace_experts_dx(const KernelArgs& args) { return workspace_of(product_of_experts_dx(args)); }

const CpuKernel table[] = {{"linear_gelu", bind, workspace},
                           {"linear_dx_gelu", bind_dx, workspace_dx},
                           {"expert_linear_gelu", bind_experts, workspace_experts},
                           {"expert_linear_dx_gelu", bind_experts_dx, workspace_experts_dx}};

}  // namespace

std::span<const CpuKernel> linear_gelu_cpu() { return table; }

}  // namespace lancet::ops
