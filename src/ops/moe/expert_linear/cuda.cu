// Products over experts' filled rows on a GPU, one launch for all experts (grouped_product.h): on tensor cores for
// aligned bf16 (tile_product.h), else on plain arithmetic.
#include "bind_product.h"

namespace lancet::ops {
namespace {

using device::bind_product;
using device::Epilogue;
using device::ExpertProduct;
using device::grouped_operands;

// With the attribute columns: the first of them, from which on a product reads b and the bias.
std::int64_t first_column(const KernelArgs& args) {
  return args.attributes.integer("columns", 0) * args.attributes.integer("part", 0);
}

Kernel bind_expert_linear(const KernelArgs& args) {
  return device::by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    auto p = grouped_operands<T>(args, args.operands.back());
    p.width = int(args.results[0].shape()[2]), p.depth = int(args.operands[1].shape()[2]);
    p.all_columns = int(args.operands[1].shape()[1]);
    p.b += first_column(args) * p.depth;
    if (args.operands.size() > 3) p.bias = args.operands[2].as<float>() + first_column(args);
    return bind_product<ExpertProduct::forward, Epilogue::round>(args, p);
  });
}

Kernel bind_expert_linear_dx(const KernelArgs& args) {
  return device::by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    auto p = grouped_operands<T>(args, args.operands[2]);
    p.width = int(args.results[0].shape()[2]), p.depth = int(args.operands[1].shape()[1]);
    p.all_columns = int(args.operands[1].shape()[2]);
    p.b += first_column(args);
    return bind_product<ExpertProduct::dx, Epilogue::round>(args, p);
  });
}

Kernel bind_expert_linear_dw(const KernelArgs& args) {
  return device::by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    auto p = grouped_operands<T>(args, args.operands[2]);
    p.height = int(args.operands[0].shape()[2]), p.width = int(args.operands[1].shape()[2]);
    if (args.results.size() > 1) p.db = args.results[1].as<float>();
    p.accumulate = args.has(3);
    return bind_product<ExpertProduct::dw, Epilogue::round>(args, p);
  });
}

}  // namespace

std::span<const DeviceKernel> expert_linear_cuda() {
  static const DeviceKernel table[] = {{"expert_linear", bind_expert_linear},
                                       {"expert_product", bind_expert_linear},
                                       {"expert_linear_dx", bind_expert_linear_dx},
                                       {"expert_linear_dw", bind_expert_linear_dw}};
  return table;
}

}  // namespace lancet::ops
