// An all-to-all of rows by a kernel: each rank copies its rows straight into its peers' memory. The row counts are in
// device memory, so that no host waits for them. It needs ranks that can access each other's memory (NVLink within a
// node), and tensors at the same offset on all ranks (the same plan, the same arena).
//
// The kernel runs between two barriers over the ranks. The first ensures that the peers' counts are written and that
// the memory that the rows overwrite is no longer used; the second ensures that all rows have arrived.
//
// The copy is a functor of plain numbers, so that tests run it on the host, with an array as the peers' memory.
#pragma once
#include <cstddef>
#include <cstdint>

#include "lancet/base/hd.h"

namespace lancet::comm {

// Shapes on each rank: slots [experts, capacity, row], buffer [experts / ranks, buffer_rows, row] for its own experts.
// `there`: filled slots are copied to the buffers of the experts' ranks; otherwise back. Addresses are this rank's.
struct RowPush {
  // One part of a batch: it owns the slots [begin[e], end[e]) of each expert e. `rows` holds the first row of each
  // source rank in the buffer of each local expert, i32[experts / ranks, ranks + 1].
  struct Part {
    const std::int32_t *begin, *end, *rows;
  };
  static constexpr int most_parts = 16;

  bool there;
  std::byte *slots, *buffer;
  std::int64_t experts, ranks, capacity, buffer_rows, row_bytes;
  int parts;
  Part part[most_parts];
};

// The blocks of a kernel run it, in any order, each with `threads` threads. A stretch is the rows of one part that one
// rank sends to one expert. The threads of a block first find several runs at once, then copy them together: the
// start of a stretch is read from a peer's memory, and reading from all peers takes as long as reading from one.
//
//   for (first = 0; first < runs(); first += most_at_once)
//     find(found, first, block, thread, threads), barrier, copy(found, first, block, blocks, thread, threads), barrier
//
// Each block, and each rank, begins with a different peer, so that all links are busy in both directions at any time.
// Peers::at(address, rank) returns the address at the same offset in that rank's memory.
template <class Peers>
struct PushRows {
  const RowPush& x;
  Peers peers;
  int rank;

  static constexpr int most_at_once = 512;
  struct Found {
    std::int32_t from, to, rows;  // rows of an expert's buffer and slots of an expert
  };

  LANCET_HD std::int64_t runs() const { return x.parts * x.experts; }

  // Sets found[i] for stretch first + i, in the order of this block.
  LANCET_HD void find(Found* found, std::int64_t first, std::int64_t block, int thread, int threads) const {
    for (std::int64_t i = thread; i < most_at_once && first + i < runs(); i += threads) {
      const Stretch s = stretch(first + i, block);
      found[i] = x.there ? sent(s) : sent_back(s);
    }
  }

  LANCET_HD void copy(const Found* found, std::int64_t first, std::int64_t block, std::int64_t blocks, int thread,
                      int threads) const {
    for (std::int64_t i = 0; i < most_at_once && first + i < runs(); ++i) {
      const Stretch s = stretch(first + i, block);
      const std::int64_t slots = s.expert * x.capacity, buffer = s.local * x.buffer_rows;
      const std::byte* from =
          x.there ? x.slots + (slots + found[i].from) * x.row_bytes : x.buffer + (buffer + found[i].from) * x.row_bytes;
      std::byte* to = x.there ? at(x.buffer, s.peer) + (buffer + found[i].to) * x.row_bytes
                              : at(x.slots, s.peer) + (slots + found[i].to) * x.row_bytes;
      // Short runs do not occupy all blocks, so a different block copies the first piece of each.
      const std::int64_t piece = (block + s.number) % blocks;
      copy_rows(to, from, found[i].rows, piece * threads + thread, blocks * threads);
    }
  }

 private:
  struct Stretch {
    std::int64_t number;  // the same in all blocks
    int part, peer;
    std::int64_t local, expert;  // index among the experts of the peer (back: of this rank); among all experts
  };
  LANCET_HD Stretch stretch(std::int64_t turn, std::int64_t block) const {
    const std::int64_t locals = x.experts / x.ranks, part = turn / x.experts, in_part = turn % x.experts;
    const std::int64_t peer = (rank + 1 + block + in_part / locals) % x.ranks, local = in_part % locals;
    return {part * x.experts + peer * locals + local, int(part), int(peer), local,
            (x.there ? peer : rank) * locals + local};
  }

  template <class T>
  LANCET_HD T* at(T* here, int peer) const {
    return reinterpret_cast<T*>(peers.at(here, peer));
  }

  // The stretch from this rank's slots to the peer's expert.
  LANCET_HD Found sent(const Stretch& s) const {
    const RowPush::Part& part = x.part[s.part];
    const std::int32_t begin = part.begin[s.expert];
    return {begin, at(part.rows, s.peer)[s.local * (x.ranks + 1) + rank], part.end[s.expert] - begin};
  }
  // The stretch that the peer has sent to this rank's expert.
  LANCET_HD Found sent_back(const Stretch& s) const {
    const RowPush::Part& part = x.part[s.part];
    const std::int32_t* rows = part.rows + s.local * (x.ranks + 1) + s.peer;
    return {rows[0], at(part.begin, s.peer)[s.expert], rows[1] - rows[0]};
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

}  // namespace lancet::comm
