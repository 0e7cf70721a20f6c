#include "launch_kernels.h"

#include "ops/device/launch.h"
#include "ops/device/run_instructions.h"
#include "ops/expert_linear/ordered_tiles.h"

namespace lancet::test {
namespace {

struct ClusterRanks {
  static constexpr int threads = 32;
  static constexpr int cluster = cluster_blocks;
  std::int32_t* ranks;
  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    std::uint32_t rank = 0;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (block.thread() == 0) ranks[block.index()] = std::int32_t(rank);
  }
};

struct Meeting {
  static constexpr int threads = 64;
  static constexpr int blocks_per_sm = 2;
  std::uint32_t* word;
  std::int32_t *values, *sums;
  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    if (block.thread() == 0) values[block.index()] = std::int32_t(block.index()) + 1;
    block.sync();
    if (block.thread() == 0) {
      block.add_word(word, 1);
      block.wait_word(word, std::uint32_t(block.count()), nullptr);
    }
    block.sync();
    std::int32_t part = 0;
    for (std::int64_t b = block.thread(); b < block.count(); b += threads) part += values[b];
    const std::int32_t sum = block.sum(part);
    if (block.thread() == 0) sums[block.index()] = sum;
  }
};

struct UntilStopped {
  static constexpr int threads = 32;
  std::uint32_t *word, *stop;
  std::int32_t* stopped;
  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const bool reached = block.wait_word(word, 1, stop);
    if (block.thread() == 0) stopped[block.index()] = reached ? 0 : 1;
  }
};

struct ArrivingProduct {
  static constexpr int threads = 256, tile_rows = 8;
  ops::device::GroupedOperands<float> operands;
  Arrival arrival;
  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    using namespace ops::device;
    const OrderedTiles<TileOrder::arrival> tiles{0};
    GroupedTile tile;
    for (int index = int(block.index());
         tiles.find<ExpertProduct::forward, tile_rows, Arrival::columns>(block, operands, index, tile);
         index += int(block.count())) {
      const std::int64_t first = tile.first_row + tile.row;
      bool missing = false;
      if (block.thread() < tile_rows / Arrival::rows_per_signal)
        missing = !block.wait_word(arrival.signals + first / Arrival::rows_per_signal + block.thread(), *arrival.step,
                                   arrival.stop);
      if (block.sum(int(missing)) > 0) return;
      const std::int64_t row = first + block.thread() / Arrival::columns;
      const int column = block.thread() % Arrival::columns;
      float sum = 0;
      for (int k = 0; k < Arrival::depth; ++k)
        sum += arrival.arrived[row * Arrival::depth + k] * arrival.weight[column * Arrival::depth + k];
      arrival.product[row * Arrival::columns + column] = sum;
      block.sync();
    }
  }
};

struct Push {
  static constexpr int threads = 64;  // the elements that a signal announces
  static_assert(threads == Arrival::rows_per_signal * Arrival::depth);
  Arrival arrival;
  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    for (std::int64_t s = block.index(); s < arrival.rows / Arrival::rows_per_signal; s += block.count()) {
      const std::int64_t at = s * threads + block.thread();
      arrival.arrived[at] = arrival.sent[at];
      block.sync();
      if (block.thread() == 0) block.set_word(arrival.signals + s, *arrival.step);
    }
  }
};

}  // namespace

Status run_arriving_product(backend::Stream& stream, std::int64_t blocks, const Arrival& arrival) {
  ops::device::GroupedOperands<float> operands{};
  operands.filled = arrival.filled, operands.experts = 1, operands.sources = 1, operands.buffer_rows = arrival.rows;
  operands.width = Arrival::columns, operands.depth = Arrival::depth;
  return ops::device::launch(stream, blocks, ArrivingProduct{operands, arrival});
}

int most_arriving_blocks() {
  using Block = ops::device::Block<ArrivingProduct::threads>;
  int blocks = 0;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, ops::device::run_kernel<Block, ArrivingProduct>,
                                                ArrivingProduct::threads, 0);
  return blocks;
}

Status run_push(backend::Stream& stream, std::int64_t blocks, const Arrival& arrival) {
  return ops::device::launch(stream, blocks, Push{arrival});
}

Status load_kernels() {
  for (const void* kernel : backend::cuda::listed_kernels()) {
    cudaFuncAttributes attributes{};
    const auto error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess) return internal_error(cudaGetErrorString(error));
  }
  return {};
}

Status run_instructions(backend::Stream& stream, Instructions* io) {
  return ops::device::launch(stream, 1, RunInstructions{io});
}

Status run_in_clusters(backend::Stream& stream, std::int64_t blocks, std::int32_t* ranks) {
  return ops::device::launch(stream, blocks, ClusterRanks{ranks});
}

Status run_meeting(backend::Stream& stream, std::int64_t blocks, std::uint32_t* word, std::int32_t* values,
                   std::int32_t* sums) {
  return ops::device::launch(stream, blocks, Meeting{word, values, sums});
}

Status run_until_stopped(backend::Stream& stream, std::int64_t blocks, std::uint32_t* word, std::uint32_t* stop,
                         std::int32_t* stopped) {
  return ops::device::launch(stream, blocks, UntilStopped{word, stop, stopped});
}

}  // namespace lancet::test
