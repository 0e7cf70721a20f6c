// Products over tiles of the columns that they sum over, by the grouped products of expert_linear with sums in f32.
#include "lancet/ops/column_tiles.h"
#include "ops/expert_linear/bind_product.h"

namespace lancet::ops {
namespace {

using device::bind_product;
using device::Epilogue;
using device::ExpertProduct;
using device::grouped_operands;

Kernel bind(const KernelArgs& args) {
  return device::by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    auto p = grouped_operands<T>(args, args.operands[3]);
    const Shape& w = args.operands[1].shape();
    const ColumnTile tile = column_tile(args.attributes, w[2]);
    p.width = p.all_columns = int(w[1]);
    p.depth = int(tile.columns), p.other_depth = int(w[2] - tile.columns);
    p.b += tile.first;
    p.accumulate = args.has(4);
    p.bias = p.accumulate ? nullptr : args.operands[2].as<float>();
    return bind_product<ExpertProduct::forward, Epilogue::sums>(args, p);
  });
}

Kernel bind_dx(const KernelArgs& args) {
  return device::by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    auto p = grouped_operands<T>(args, args.operands[2]);
    const Shape& w = args.operands[1].shape();
    const ColumnTile tile = column_tile(args.attributes, w[1]);
    p.width = p.all_columns = int(w[2]);
    p.depth = int(tile.columns), p.other_depth = int(w[1] - tile.columns);
    p.b += tile.first * w[2];
    p.accumulate = args.has(3);
    return bind_product<ExpertProduct::dx, Epilogue::sums>(args, p);
  });
}

// One pack of the result per thread, of a filled row. Bytes: each sum read once, each element of the result written
// once.
struct RoundRows {
  static constexpr int threads = 256;
  static constexpr int size = device::Pack<bf16>::size, half = device::Pack<float>::size;
  const float* sums;
  bf16* y;
  const std::int32_t* filled;                                     // [experts, entries]
  std::int64_t entries, rows, columns, packs, blocks_per_expert;  // packs: of a row
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t e = block.index() / blocks_per_expert, chunk = block.index() % blocks_per_expert;
    const std::int64_t i = chunk * threads + block.thread(), row = filled[e * entries] + i / packs;
    if (row >= filled[(e + 1) * entries - 1]) return;
    const std::int64_t column = i % packs * size, at = (e * rows + row) * columns + column;
    device::Floats<bf16> rounded;
#pragma unroll
    for (int h = 0; h < size; h += half) {
      const auto part = device::part_of_row<float>(column + h, columns);
      const auto x = device::load(sums + at + h, part, wide);
#pragma unroll
      for (int j = 0; j < half; ++j) rounded.v[h + j] = x.v[j];
    }
    device::store(y + at, device::from_floats<bf16>(rounded), device::part_of_row<bf16>(column, columns), wide);
  }
};

Kernel bind_round(const KernelArgs& args) {
  const Shape& shape = args.operands[0].shape();
  const TensorView& filled = args.operands[1];
  const std::int64_t packs = device::divide_up(shape[2], RoundRows::size);
  const std::int64_t blocks_per_expert = device::divide_up(shape[1] * packs, RoundRows::threads);
  const auto* sums = args.operands[0].as<float>();
  auto* y = args.results[0].as<bf16>();
  const RoundRows kernel{sums,
                         y,
                         filled.as<std::int32_t>(),
                         filled.shape()[1],
                         shape[1],
                         shape[2],
                         packs,
                         blocks_per_expert,
                         device::aligned(sums, y) && device::aligned_rows<bf16>(shape[2])};
  return device::run_steps(args.stream, device::Step{shape[0] * blocks_per_expert, kernel});
}

const DeviceKernel table[] = {
    {"expert_linear_sums", bind}, {"expert_linear_dx_sums", bind_dx}, {"round_rows", bind_round}};

}  // namespace

std::span<const DeviceKernel> expert_sums_cuda() { return table; }

}  // namespace lancet::ops
