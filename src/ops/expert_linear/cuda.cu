// Products over experts' filled rows, whose ranges lie in device memory: nothing here waits for them.
#include "ops/device/pack.h"
#include "ops/expert_linear/grouped_product.h"

namespace lancet::ops {
namespace {

using device::ExpertProduct;
using device::GroupedOperands;

// Enough blocks to fill any GPU so far (two of a tensor core product live on a multiprocessor); each takes tiles until
// there are none.
constexpr std::int64_t most_blocks = 2 * 160;

template <class F>
Kernel product(const KernelArgs& args, std::int64_t most_rows, std::int64_t tile_rows, std::int64_t tile_columns,
               const F& kernel) {
  const std::int64_t tiles =
      kernel.p.experts * device::divide_up(most_rows, tile_rows) * device::divide_up(kernel.p.width, tile_columns);
  return device::run_steps(args.stream, device::Step{std::min(tiles, most_blocks), kernel});
}

template <ExpertProduct kind, class T>
Kernel bind_product(const KernelArgs& args, const GroupedOperands<T>& p) {
  const std::int64_t rows = kind == ExpertProduct::dw ? p.height : p.buffer_rows;
  if constexpr (std::is_same_v<T, bf16>) {
    const auto aligned = [](const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; };
    const bool whole = p.width % 8 == 0 && (kind == ExpertProduct::dw ? p.height : p.depth) % 8 == 0;
    if (whole && aligned(p.a) && aligned(p.b) && aligned(p.c))
      return product(args, rows, device::TileShape::rows, device::TileShape::columns,
                     device::GroupedTensorProduct<kind>{p});
  }
  return product(args, rows, device::PlainShape::rows, device::PlainShape::columns,
                 device::GroupedPlainProduct<T, kind>{p});
}

template <class T>
GroupedOperands<T> operands_of(const KernelArgs& args, const TensorView& filled) {
  const TensorView &a = args.operands[0], &b = args.operands[1];
  GroupedOperands<T> p{};
  p.a = a.as<T>(), p.b = b.as<T>(), p.c = args.results[0].data;
  p.filled = filled.as<std::int32_t>();
  p.experts = int(filled.shape()[0]), p.sources = int(filled.shape()[1] - 1);
  p.buffer_rows = a.shape()[1];
  return p;
}

// expert_linear(x [E,R,K], w [E,N,K], b f32[E,N], rows) -> y [E,R,N]
Kernel bind(const KernelArgs& args) {
  return device::by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    auto p = operands_of<T>(args, args.operands[3]);
    p.bias = args.operands[2].as<float>();
    p.width = int(args.operands[1].shape()[1]), p.depth = int(args.operands[1].shape()[2]);
    return bind_product<ExpertProduct::forward>(args, p);
  });
}

// expert_linear_dx(dy [E,R,N], w [E,N,K], rows) -> dx [E,R,K]
Kernel bind_dx(const KernelArgs& args) {
  return device::by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    auto p = operands_of<T>(args, args.operands[2]);
    p.width = int(args.operands[1].shape()[2]), p.depth = int(args.operands[1].shape()[1]);
    return bind_product<ExpertProduct::dx>(args, p);
  });
}

// expert_linear_dw(dy [E,R,N], x [E,R,K], rows [, dw so far, db so far]) -> dw f32[E,N,K], db f32[E,N]
Kernel bind_dw(const KernelArgs& args) {
  return device::by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    auto p = operands_of<T>(args, args.operands[2]);
    p.height = int(args.operands[0].shape()[2]), p.width = int(args.operands[1].shape()[2]);
    p.db = args.results[1].as<float>();
    p.accumulate = args.has(3);
    return bind_product<ExpertProduct::dw>(args, p);
  });
}

const DeviceKernel table[] = {{"expert_linear", bind}, {"expert_linear_dx", bind_dx}, {"expert_linear_dw", bind_dw}};

}  // namespace

std::span<const DeviceKernel> expert_linear_cuda() { return table; }

}  // namespace lancet::ops
