#include "launch_kernels.h"

#include "ops/device/launch.h"
#include "ops/device/run_instructions.h"

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

}  // namespace

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
