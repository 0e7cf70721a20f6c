// All-to-alls through windows: a kernel copies rows straight into the peers' memory, by counts that it reads on the
// device.
//
// All ranks launch it with the same number of blocks. Block b of a rank waits for block b of every other rank, copies
// its share of the rows and waits again, so that no host takes part. So there must be room for all blocks of a launch
// at the same time, or blocks must begin in the same order on all ranks, as GPUs do in practice. The host can stop
// kernels that wait for a peer that never comes.
#pragma once
#include <cstddef>
#include <cstdint>

#include "lancet/comm/peers.h"
#include "ops/device/launch.h"

namespace lancet::ops::device {

// Shapes on each rank: slots [experts, capacity, row], buffer [experts / ranks, buffer_rows, row] for its own experts.
// `there`: filled slots are copied to the buffers of the experts' ranks; otherwise back. Addresses are this rank's, in
// its window.
struct RowPush {
  // One part of a batch. filled i32[experts, 2]: the slots of each expert that it fills, the first and the one after
  // the last. `rows` holds the first row of each source rank in the buffer of each local expert, i32[experts / ranks,
  // ranks + 1].
  struct Part {
    const std::int32_t *filled, *rows;
  };
  static constexpr int most_parts = 16;

  bool there;
  std::byte *slots, *buffer;
  std::int64_t experts, ranks, capacity, buffer_rows, row_bytes;
  int parts;
  Part part[most_parts];
};

// A message is the rows of one part that one rank sends to one expert. The threads of a block first find several
// messages at once, then copy them together: the start of a message is read from a peer's memory, and reading from all
// peers takes as long as reading from one. Each block, and each rank, begins with a different peer, so that all links
// are busy in both directions at any time.
struct PushRows {
  static constexpr int threads = 512;
  static constexpr int most_at_once = 512;
  struct Found {
    std::int32_t from, to, rows;  // rows of an expert's buffer and slots of an expert
  };
  struct Shared {
    Found found[most_at_once];
  };
  RowPush x;
  comm::Window window;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const bool stopped = block.thread() == 0 && block.load_word(window.peers.stop) != 0;
    if (block.sum(int(stopped)) > 0) return;  // the peers' memory may be gone already
    if (!meet(block, 2 * window.generation - 1)) return;
    Found* found = block.template shared<Shared>().found;
    for (std::int64_t first = 0; first < messages(); first += most_at_once) {
      find(found, first, block);
      block.sync();
      copy(found, first, block);
      block.sync();
    }
    meet(block, 2 * window.generation);
  }

  // The peer of the i-th message of a part, in the order of a block.
  LANCET_HD int peer_of(std::int64_t i, std::int64_t block) const {
    return int((window.peers.rank + 1 + block + i / locals()) % x.ranks);
  }

 private:
  // Waits for the same block of the other ranks; false if the host has stopped it. Afterwards this block sees what
  // those blocks wrote before. signals[block, rank] is the last meeting that the rank's block has come to; it has one
  // writer, so that it needs no atomics, which links between GPUs may lack.
  template <class Block>
  LANCET_DEVICE bool meet(Block& block, std::uint32_t meeting) const {
    block.sync();
    const comm::Signals& signals = window.signals;
    const std::int64_t row = block.index() * x.ranks;
    for (int peer = block.thread(); peer < x.ranks; peer += threads)
      block.set_word(signals.word(window.peers, peer, row + window.peers.rank), meeting);
    bool missing = false;
    for (int peer = block.thread(); peer < x.ranks; peer += threads)
      missing = !block.wait_word(signals.word(row + peer), meeting, window.peers.stop) || missing;
    missing = block.sum(int(missing)) > 0;
    block.sync();
    return !missing;
  }

  LANCET_HD std::int64_t messages() const { return x.parts * x.experts; }
  LANCET_HD std::int64_t locals() const { return x.experts / x.ranks; }

  // Sets found[i] for message first + i, in the order of this block.
  template <class Block>
  LANCET_DEVICE void find(Found* found, std::int64_t first, Block& block) const {
    for (std::int64_t i = block.thread(); i < most_at_once && first + i < messages(); i += threads) {
      const Message s = message(first + i, block.index());
      found[i] = x.there ? sent(s) : sent_back(s);
    }
  }

  template <class Block>
  LANCET_DEVICE void copy(const Found* found, std::int64_t first, Block& block) const {
    for (std::int64_t i = 0; i < most_at_once && first + i < messages(); ++i) {
      const Message s = message(first + i, block.index());
      const std::int64_t slots = s.expert * x.capacity, buffer = s.local * x.buffer_rows;
      const std::byte* from =
          x.there ? x.slots + (slots + found[i].from) * x.row_bytes : x.buffer + (buffer + found[i].from) * x.row_bytes;
      std::byte* to = x.there ? window.peers.at(x.buffer, s.peer) + (buffer + found[i].to) * x.row_bytes
                              : window.peers.at(x.slots, s.peer) + (slots + found[i].to) * x.row_bytes;
      // Short messages do not occupy all blocks, so a different block copies the first piece of each.
      const std::int64_t piece = (block.index() + s.number) % block.count();
      copy_rows(to, from, found[i].rows, piece * threads + block.thread(), block.count() * threads);
    }
  }

  struct Message {
    std::int64_t number;  // the same in all blocks
    int part, peer;
    std::int64_t local, expert;  // index among the experts of the peer (back: of this rank); among all experts
  };
  LANCET_HD Message message(std::int64_t turn, std::int64_t block) const {
    const std::int64_t part = turn / x.experts, in_part = turn % x.experts, local = in_part % locals();
    const int peer = peer_of(in_part, block);
    return {part * x.experts + peer * locals() + local, int(part), peer, local,
            (x.there ? peer : window.peers.rank) * locals() + local};
  }

  // The message from this rank's slots to the peer's expert.
  LANCET_HD Found sent(const Message& s) const {
    const RowPush::Part& part = x.part[s.part];
    const std::int32_t begin = part.filled[2 * s.expert];
    return {begin, window.peers.at(part.rows, s.peer)[s.local * (x.ranks + 1) + window.peers.rank],
            part.filled[2 * s.expert + 1] - begin};
  }
  // The message that the peer has sent to this rank's expert.
  LANCET_HD Found sent_back(const Message& s) const {
    const RowPush::Part& part = x.part[s.part];
    const std::int32_t* rows = part.rows + s.local * (x.ranks + 1) + s.peer;
    return {rows[0], window.peers.at(part.filled, s.peer)[2 * s.expert], rows[1] - rows[0]};
  }

  struct alignas(16) Sixteen {
    std::uint64_t words[2];
  };
  LANCET_HD void copy_rows(std::byte* to, const std::byte* from, std::int64_t rows, std::int64_t worker,
                           std::int64_t workers) const {
    const std::int64_t bytes = rows * x.row_bytes;
    if (x.row_bytes % 16 == 0)  // tensors begin at multiples of 16 bytes, or more
      copy_as<Sixteen>(to, from, bytes, worker, workers);
    else
      copy_as<std::uint16_t>(to, from, bytes, worker, workers);
  }
  template <class T>
  LANCET_HD static void copy_as(std::byte* to, const std::byte* from, std::int64_t bytes, std::int64_t worker,
                                std::int64_t workers) {
    T* out = reinterpret_cast<T*>(to);
    const T* in = reinterpret_cast<const T*>(from);
    const std::int64_t n = bytes / std::int64_t(sizeof(T));
    std::int64_t i = worker;
    for (; i + 3 * workers < n; i += 4 * workers) {  // four reads are in flight before the first write waits for one
      const T a = in[i], b = in[i + workers], c = in[i + 2 * workers], d = in[i + 3 * workers];
      out[i] = a, out[i + workers] = b, out[i + 2 * workers] = c, out[i + 3 * workers] = d;
    }
    for (; i < n; i += workers) out[i] = in[i];
  }
};

}  // namespace lancet::ops::device
