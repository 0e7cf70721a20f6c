// Binds the products over experts' filled rows by wgmma (warpgroup_product.h). This source alone is compiled for
// sm_90a.
#include "bind_product.h"
#include "warpgroup_product.h"

namespace lancet::ops::device {
namespace {

using backend::cuda::TiledMatrix;

#ifdef LANCET_SM_90A
constexpr bool compiled = true;
#else
constexpr bool compiled = false;  // without sm_90 among the architectures, the kernels are empty
#endif

// How many rows forward or dx expect to be filled.
std::int64_t expected_rows(const KernelArgs& args, const GroupedOperands<bf16>& p) {
  const std::int64_t all = p.experts * p.buffer_rows;
  return std::min(all, args.attributes.integer("tokens", all));
}

// True if wgmma is not slower than mma: if there are more tiles than half of the multiprocessors. Blocks of both
// kernels take 128x256 of a result on a multiprocessor at once, wgmma as one tile and mma as two, so from then on both
// take as many rounds, and wgmma's are shorter. Below, mma spreads its smaller tiles over more multiprocessors.
//
// The two may round differently, so a part of a product takes the kernel of the whole: what counts are the whole's
// tiles, if the expected rows (the attribute tokens) are spread evenly over its experts.
bool fills_device(const KernelArgs& args, ExpertProduct product, const GroupedOperands<bf16>& p) {
  using S = WarpgroupShape;
  const bool columns = args.attributes.has("columns");  // then the parts share the rows
  const std::int64_t parts = columns ? 1 : args.attributes.integer("parts", 1);
  const std::int64_t tiles =
      product == ExpertProduct::dw
          ? parts * p.experts * divide_up(p.height, S::rows) * divide_up(p.width, S::columns)
          : parts * expected_rows(args, p) / S::rows * divide_up(columns ? p.all_columns : p.width, S::columns);
  return 2 * tiles > args.device->traits().multiprocessors;
}

template <ExpertProduct product, Epilogue epilogue>
Kernel bind(const KernelArgs& args, const GroupedOperands<bf16>& p) {
  using Product = GroupedWarpgroupProduct<product, epilogue>;
  using S = WarpgroupShape;
  constexpr bool dw = product == ExpertProduct::dw, forward = product == ExpertProduct::forward;
  const std::int64_t rows = p.experts * p.buffer_rows, experts = p.experts;
  const auto encode = [&](const bf16* data, std::int64_t rows, std::int64_t columns, std::int64_t stride, int tile_rows,
                          auto& map) {
    const Status encoded = backend::cuda::encode(TiledMatrix{.data = data,
                                                             .dtype = DType::bf16,
                                                             .rows = rows,
                                                             .columns = columns,
                                                             .stride = stride,
                                                             .tile_rows = tile_rows,
                                                             .tile_columns = S::box},
                                                 map);
    if (!encoded.ok() && args.remarks)
      args.remarks->insert("experts' products by mma instructions, since wgmma has no map: " + encoded.error().message);
    return encoded.ok();
  };
  const int a_columns = dw ? p.height : p.depth;
  // Of b, some columns of a product begin within the first expert, and end within the last.
  const std::int64_t b_rows = dw ? rows : forward ? (experts - 1) * p.all_columns + p.width : experts * p.depth;
  const int b_columns = forward ? p.depth : p.width, b_stride = forward ? p.depth : dw ? p.width : p.all_columns;
  Product kernel{};
  kernel.p = p;
  if (!encode(p.a, rows, a_columns, a_columns, dw ? S::depth : S::rows, kernel.map_a) ||
      !encode(p.b, b_rows, b_columns, b_stride, forward ? S::columns / 2 : S::depth, kernel.map_b) ||
      (Product::argument_read && !encode(p.argument, rows, p.width, p.width, S::rows, kernel.map_argument)))
    return {};
  // Blocks for the tiles of the expected rows: buffers may be many times as large. If more rows are filled, the blocks
  // take more tiles.
  const std::int64_t down =
      dw ? experts * divide_up(p.height, S::rows)
         : std::min(divide_up(expected_rows(args, p), S::rows) + experts, experts * divide_up(p.buffer_rows, S::rows));
  const std::int64_t tiles = down * divide_up(p.width, S::columns);
  const std::int64_t blocks = divide_up(tiles, Product::tiles_per_block);
  return run_steps(args.stream, Step{blocks_of_tiles(blocks, args.device->traits()), kernel});
}

}  // namespace

Kernel bind_warpgroup_product(const KernelArgs& args, ExpertProduct product, Epilogue epilogue,
                              const GroupedOperands<bf16>& p) {
  const bool whole_slices = product == ExpertProduct::dw || p.depth % WarpgroupShape::depth == 0;
  if (!compiled || args.device->traits().capability != 90) return {};
  if (!whole_slices || !fills_device(args, product, p)) return {};
  const bool gelu = epilogue == Epilogue::gelu;
  switch (product) {
    case ExpertProduct::forward:
      return gelu ? bind<ExpertProduct::forward, Epilogue::gelu>(args, p)
                  : bind<ExpertProduct::forward, Epilogue::round>(args, p);
    case ExpertProduct::dx:
      return gelu ? bind<ExpertProduct::dx, Epilogue::gelu>(args, p)
                  : bind<ExpertProduct::dx, Epilogue::round>(args, p);
    case ExpertProduct::dw:
      return bind<ExpertProduct::dw, Epilogue::round>(args, p);
  }
  return {};
}

}  // namespace lancet::ops::device
