#include "lancet/ir/route_layout.h"
#include "ops/device/pack.h"

namespace lancet::ops {
namespace {

using namespace device;

struct FilledRows {
  static constexpr int threads = 128;
  const std::int32_t *begin, *end;  // [E]
  std::int32_t* rows;               // [E, 2]
  std::int64_t experts;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t e = block.index() * threads + block.thread();
    if (e < experts) rows[2 * e] = begin[e], rows[2 * e + 1] = end[e];
  }
};

Kernel bind(const KernelArgs& args) {
  const ir::RouteLayout layout{args.operands[0].shape()[0], args.operands[0].shape()[1]};
  const FilledRows kernel{layout.begin(args.operands[0].data), layout.end(args.operands[0].data),
                          args.results[0].as<std::int32_t>(), layout.experts};
  return run_steps(args.stream, Step{divide_up(kernel.experts, FilledRows::threads), kernel});
}

const DeviceKernel table[] = {{"filled_rows", bind}};

}  // namespace

std::span<const DeviceKernel> filled_rows_cuda() { return table; }

}  // namespace lancet::ops
