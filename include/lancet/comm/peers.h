// Memory of several ranks that each of them reaches directly, as the kernels of one rank see it: a symmetric window of
// NCCL, or memory of one process. A tensor has the same offset in the window of every rank. These are plain values that
// a kernel takes as arguments; the operations on words are those of its block (ops/device: set_word, add_word,
// wait_word).
#pragma once
#include <cstddef>
#include <cstdint>

#include "lancet/base/hd.h"

namespace lancet::comm {

// The windows of all ranks.
struct Peers {
  std::byte* window;  // this rank's, where its tensors are
  std::byte* const*
      windows;  // [ranks]: all of them, as this rank reaches them; the table is in memory that kernels read
  int rank, ranks;
  const std::uint32_t* stop;  // not 0 once the host has stopped the kernels; in memory that host and kernels read

  // The place in the window of `peer` that corresponds to `here`, a place in this rank's window.
  template <class T>
  LANCET_HD T* at(T* here, int peer) const {
    const auto offset = reinterpret_cast<std::uintptr_t>(here) - reinterpret_cast<std::uintptr_t>(window);
    return reinterpret_cast<T*>(windows[peer] + offset);
  }
};

// Words in the windows by which kernels of different ranks wait for each other. They only grow, modulo 2^32, so that a
// value that was set in one step is no signal in a later one.
struct Signals {
  std::uint32_t* words;  // of this rank, in its window

  LANCET_HD std::uint32_t* word(std::int64_t i) const { return words + i; }
  LANCET_HD std::uint32_t* word(const Peers& peers, int peer, std::int64_t i) const {
    return peers.at(words + i, peer);
  }
};

// What a kernel whose launches meet gets of a window. All ranks launch the same kernels on it, in the same order, with
// this many blocks.
struct Window {
  Peers peers;
  Signals signals;  // [blocks, ranks]
  int blocks;
  std::uint32_t generation;  // 1 for the first kernel, one more for each that follows
};

}  // namespace lancet::comm
