#include "lancet/ops/column_tiles.h"
#include "ops/expert_linear/cpu_product.h"

namespace lancet::ops {
namespace {

using backend::cpu::GroupedMatmulDesc;
using backend::cpu::GroupedRows;

// The product of a tile of rows with the weights of its columns, read where they are in the whole, onto the sums.
GroupedMatmulDesc tile_desc(const KernelArgs& args, std::int64_t width, bool adds) {
  const TensorView &x = args.operands[0], &w = args.operands[1];
  GroupedMatmulDesc desc =
      cpu::extents(GroupedRows::m, x.shape()[0], x.shape()[1], width, x.shape()[2], x.dtype(), DType::f32);
  desc.product.ldb = w.shape()[2];
  desc.product.accumulate = adds;
  desc.stride_b = w.shape()[1] * w.shape()[2];
  return desc;
}

Kernel bind(const KernelArgs& args) {
  const TensorView &x = args.operands[0], &w = args.operands[1], &b = args.operands[2];
  const bool adds = args.has(4);
  GroupedMatmulDesc desc = tile_desc(args, w.shape()[1], adds);
  desc.product.trans_b = true;
  if (!adds) desc.product.bias = DType::f32;
  return cpu::product(desc, {args.operands[3], x.shape()[1]}, x.data,
                      cpu::from_element(w, column_tile(args.attributes, w.shape()[2]).first), adds ? nullptr : b.data,
                      args.results[0].data);
}

Kernel bind_dx(const KernelArgs& args) {
  const TensorView &dy = args.operands[0], &w = args.operands[1];
  const std::int64_t first = column_tile(args.attributes, w.shape()[1]).first;
  return cpu::product(tile_desc(args, w.shape()[2], args.has(3)), {args.operands[2], dy.shape()[1]}, dy.data,
                      cpu::from_element(w, first * w.shape()[2]), nullptr, args.results[0].data);
}

Kernel bind_round(const KernelArgs& args) {
  const Shape& shape = args.operands[0].shape();
  const cpu::FilledRows filled(args.operands[1], shape[1]);
  return [=, width = shape[2], sums = args.operands[0].as<float>(), y = args.results[0].as<bf16>()]() -> Status {
    filled.parallel(cpu::row_grain(width), [&](std::int64_t begin, std::int64_t end) {
      cpu::map((end - begin) * width, y + begin * width, [](float x) { return x; }, sums + begin * width);
    });
    return {};
  };
}

const CpuKernel table[] = {
    {"expert_linear_sums", bind}, {"expert_linear_dx_sums", bind_dx}, {"round_rows", bind_round}};

}  // namespace

std::span<const CpuKernel> expert_sums_cpu() { return table; }

}  // namespace lancet::ops
