// Binds the products over experts' filled rows: chooses wgmma, mma or plain arithmetic, and the number of blocks.
#pragma once
#include "grouped_product.h"
#include "ops/device/pack.h"

namespace lancet::ops::device {

// The product by wgmma (warpgroup.cu), or null where it does not serve: on other devices than sm_90, for depths
// that are no multiples of 64, and for few tiles. The operands are aligned as for GroupedTensorProduct.
Kernel bind_warpgroup_product(const KernelArgs& args, ExpertProduct product, Epilogue epilogue,
                              const GroupedOperands<bf16>& p);

template <ExpertProduct kind, Epilogue epilogue, class T>
Kernel bind_product(const KernelArgs& args, GroupedOperands<T> p) {
  const backend::DeviceTraits& device = args.device->traits();
  const std::int64_t rows = kind == ExpertProduct::dw ? p.height : p.buffer_rows;
  const auto tiles = [&]<class Shape>(Shape) {
    return p.experts * divide_up(rows, Shape::rows) * divide_up(p.width, Shape::columns);
  };
  if constexpr (std::is_same_v<T, bf16>) {
    const bool whole =
        p.width % 8 == 0 && p.all_columns % 8 == 0 && (kind == ExpertProduct::dw ? p.height : p.depth) % 8 == 0;
    if (whole && aligned(p.a, p.b, static_cast<const bf16*>(p.c), p.argument)) {
      if (Kernel kernel = bind_warpgroup_product(args, kind, epilogue, p)) return kernel;
      std::int64_t blocks = blocks_of_tiles(tiles(TileShape()), device);
      if constexpr (kind == ExpertProduct::dw) {
        p.quartered = quartered_tiles(tiles(TileShape()), device);
        blocks = tiles(TileShape()) + 3 * p.quartered;
      }
      return run_steps(args.stream, Step{blocks, GroupedTensorProduct<kind, epilogue>{p}});
    }
  }
  return run_steps(args.stream,
                   Step{blocks_of_tiles(tiles(PlainShape()), device), GroupedPlainProduct<T, kind, epilogue>{p}});
}

// The fields that all products share: a and b are the first two operands, c is the first result, `filled` the rows.
template <class T>
GroupedOperands<T> grouped_operands(const KernelArgs& args, const TensorView& filled) {
  const TensorView &a = args.operands[0], &b = args.operands[1];
  GroupedOperands<T> p{};
  p.a = a.as<T>(), p.b = b.as<T>(), p.c = args.results[0].data;
  p.filled = filled.as<std::int32_t>();
  p.experts = int(filled.shape()[0]), p.sources = int(filled.shape()[1] - 1);
  p.buffer_rows = a.shape()[1];
  return p;
}

}  // namespace lancet::ops::device
