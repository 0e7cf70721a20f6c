#include "lancet/ir/route_layout.h"
#include "lancet/ops/kernel.h"

namespace lancet::ops {
namespace {

Kernel bind(const KernelArgs& args) {
  const ir::RouteLayout layout{args.operands[0].shape()[0], args.operands[0].shape()[1]};
  const std::int32_t *begin = layout.begin(args.operands[0].data), *end = layout.end(args.operands[0].data);
  auto* rows = args.results[0].as<std::int32_t>();
  return [=]() -> Status {
    for (std::int64_t e = 0; e < layout.experts; ++e) rows[2 * e] = begin[e], rows[2 * e + 1] = end[e];
    return {};
  };
}

const CpuKernel table[] = {{"filled_rows", bind}};

}  // namespace

std::span<const CpuKernel> filled_rows_cpu() { return table; }

}  // namespace lancet::ops
