// The kernels of ops.cpp, for emulated ranks.
#pragma once
#include <array>
#include <atomic>

#include "lancet/ops/kernel.h"
#include "ops/device/launch.h"
#include "ops/expert_linear/ordered_tiles.h"

namespace lancet::test {

// What a test does to the pushes that are launched from now on.
inline std::atomic<int> silent_rank{-1};       // sets no signals, as a rank that is lost
inline std::atomic<int> slow_rank{-1};         // sends its rows long after the others
inline std::atomic<bool> last_waits{false};    // each rank's last signal waits until its receiver has stored a tile
inline std::array<std::uint32_t, 8> stored{};  // by rank: the last step in which it has stored a tile
inline std::array<comm::DeviceCommunicator*, 8> windows_of{};  // by rank: for pushes of the compute stream, too

// Meets the other ranks, so that their y is free; then copies rows, N at a time, to the nearest ranks first, and says
// so to each. Ends once this rank's rows are there.
struct PushRows {
  static constexpr int threads = 32;
  const float* x;  // [W, R, K]
  float* y;        // [W R, K], in the window
  std::int64_t rows, width, rows_per_signal;
  comm::Signals arrived;
  const std::uint32_t* step;
  comm::Window window;
  bool silent, slow, last_waits;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const comm::Peers& peers = window.peers;
    const std::int64_t meeting = block.index() * peers.ranks;
    bool missing = false;
    for (int peer = block.thread(); peer < peers.ranks; peer += threads)
      block.set_word(window.signals.word(peers, peer, meeting + peers.rank), window.generation);
    for (int peer = block.thread(); peer < peers.ranks; peer += threads)
      missing = !block.wait_word(window.signals.word(meeting + peer), window.generation, peers.stop);
    if (block.sum(int(missing)) > 0) return;
    std::uint32_t turns = 0;
    for (int i = 0; slow && i < 20000; ++i) block.set_word(&turns, 1);  // each write lets other blocks run
    const std::int64_t groups = rows / rows_per_signal, elements = rows_per_signal * width;
    for (std::int64_t i = block.index(); i < peers.ranks * groups; i += block.count()) {
      const int peer = int((peers.rank + peers.ranks - i / groups) % peers.ranks);
      const std::int64_t group = i % groups, announced = peers.rank * groups + group;
      for (std::int64_t j = block.thread(); j < elements; j += threads)
        peers.at(y, peer)[announced * elements + j] = x[(peer * groups + group) * elements + j];
      if (last_waits && i == peers.ranks * groups - 1) block.wait_word(&stored[std::size_t(peer)], *step, peers.stop);
      block.sync();
      if (block.thread() == 0 && !silent) block.set_word(arrived.word(peers, peer, announced), *step);
    }
    for (std::int64_t s = block.index() * threads + block.thread(); s < peers.ranks * groups;
         s += block.count() * threads)
      block.wait_word(arrived.word(s), *step, peers.stop);
  }
};

// y = x w^T in tiles of 8 x 4, the rows of the nearest ranks first, each once its rows have arrived.
struct ArrivingProduct {
  static constexpr int threads = 32;
  ops::device::GroupedOperands<float> p;
  std::int64_t rows_per_signal;
  comm::Signals arrived;
  const std::uint32_t* step;
  comm::Peers peers;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    using namespace ops::device;
    const OrderedTiles<TileOrder::arrival> tiles{peers.rank};
    GroupedTile tile;
    for (int index = int(block.index()); tiles.find<ExpertProduct::forward, 8, 4>(block, p, index, tile);
         index += int(block.count())) {
      const std::int64_t first = tile.first_row + tile.row, end = std::min(first + 8, tile.first_row + tile.rows);
      bool missing = false;
      const std::int64_t last = (end - 1) / rows_per_signal;
      for (std::int64_t s = first / rows_per_signal + block.thread(); s <= last; s += threads)
        missing = !block.wait_word(arrived.word(s), *step, peers.stop) || missing;
      if (block.sum(int(missing)) > 0) return;
      const std::int64_t row = first + block.thread() / 4;
      const int column = tile.column + block.thread() % 4;
      block.sync();
      if (row < end && column < p.width) {
        float sum = 0;
        for (int k = 0; k < p.depth; ++k) sum += p.a[row * p.depth + k] * p.b[column * p.depth + k];
        static_cast<float*>(p.c)[row * p.width + column] = sum;
      }
      block.sync();
      if (block.thread() == 0) block.set_word(&stored[std::size_t(peers.rank)], *step);
    }
  }
};

struct Scribble {
  static constexpr int threads = 32;
  std::uint32_t* words;
  std::int64_t count;
  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    for (std::int64_t i = block.thread(); i < count; i += threads) words[i] = 0x7f000000u;
  }
};

inline ops::Kernel bind_push(const ops::KernelArgs& args) {
  const Shape& x = args.operands[0].shape();
  const ops::TensorView& signals = args.results[1];
  return [=, comm = windows_of[std::size_t(args.peers->rank)], stream = args.stream,
          from = args.operands[0].as<float>(), to = args.results[0].as<float>(), step = args.step] {
    return comm->in_windows(*stream, [&](backend::Stream& on, const comm::Window& window) {
      const int rank = window.peers.rank;
      const comm::Signals arrived{signals.as<std::uint32_t>()};
      return ops::device::launch(on, window.blocks,
                                 PushRows{from, to, x[1], x[2], signals.rows_per_signal, arrived, step, window,
                                          rank == silent_rank, rank == slow_rank, last_waits});
    });
  };
}

inline ops::Kernel bind_arriving(const ops::KernelArgs& args) {
  ops::device::GroupedOperands<float> p{};
  const auto &x = args.operands[0], &signals = args.operands[1], &w = args.operands[2], &rows = args.operands[3];
  p.a = x.as<float>(), p.b = w.as<float>(), p.c = args.results[0].data, p.filled = rows.as<std::int32_t>();
  p.experts = 1, p.sources = int(rows.shape()[1] - 1), p.buffer_rows = x.shape()[1];
  p.width = int(w.shape()[0]), p.depth = int(w.shape()[1]);
  const ArrivingProduct product{p, signals.rows_per_signal, {signals.as<std::uint32_t>()}, args.step, *args.peers};
  return [product, stream = args.stream] { return ops::device::launch(*stream, 3, product); };
}

inline ops::Kernel bind_scribble(const ops::KernelArgs& args) {
  const ops::TensorView& to = args.results[0];
  return [to, stream = args.stream] {
    return ops::device::launch(*stream, 1, Scribble{to.as<std::uint32_t>(), to.elements()});
  };
}

}  // namespace lancet::test
