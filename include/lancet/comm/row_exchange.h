// An all-to-all of rows by a kernel: each rank copies its rows straight into its peers' memory, by counts that lie in
// device memory, so that no host waits for them. For ranks that reach each other's memory (NVLink within a node), where
// every tensor lies at the same place on all of them (the same plan, the same arena).
//
// Between two barriers over the ranks: the one before says that the peers' counts are there and that what the rows
// overwrite is done with, the one behind that all rows have come.
//
// The copying is a functor of plain numbers, so the host runs it in tests, with an array for the peers.
#pragma once
#include <cstddef>
#include <cstdint>

#include "lancet/base/hd.h"

namespace lancet::comm {

// slots [experts, capacity, row] on each rank, buffer [experts / ranks, buffer_rows, row] of its own experts. `there`:
// filled slots into the buffers of the experts' ranks; else back. Addresses are this rank's.
struct RowExchange {
  // Of one part of a batch: the slots [begin[e], end[e]) of each expert that it owns; where the rows of each source
  // rank begin in the buffer of a local expert, i32[experts / ranks, ranks + 1].
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

// Some of `workers` of one rank run it, each with a number of its own, in any order.
// Peers: at(address here, rank): the same place in that rank's memory.
template <class Peers>
struct PushRows {
  const RowExchange& x;
  Peers peers;
  int rank;

  LANCET_HD void operator()(std::int64_t worker, std::int64_t workers) const {
    const std::int64_t local = x.experts / x.ranks;
    for (int p = 0; p < x.parts; ++p)
      for (std::int64_t turn = 0; turn < x.experts; ++turn) {
        // Each rank begins with the next one: not all at the same.
        const std::int64_t peer = (rank + 1 + turn / local) % x.ranks, e = turn % local;
        if (x.there)
          send(x.part[p], worker, workers, int(peer), e);
        else
          send_back(x.part[p], worker, workers, int(peer), e);
      }
  }

 private:
  template <class T>
  LANCET_HD T* at(T* here, int peer) const {
    return reinterpret_cast<T*>(peers.at(here, peer));
  }

  // The slots that go to the peer's expert e.
  LANCET_HD void send(const RowExchange::Part& part, std::int64_t worker, std::int64_t workers, int peer,
                      std::int64_t e) const {
    const std::int64_t slots_of = peer * (x.experts / x.ranks) + e, begin = part.begin[slots_of];
    const std::int64_t first = at(part.rows, peer)[e * (x.ranks + 1) + rank];
    copy(at(x.buffer, peer) + (e * x.buffer_rows + first) * x.row_bytes,
         x.slots + (slots_of * x.capacity + begin) * x.row_bytes, part.end[slots_of] - begin, worker, workers);
  }
  // What the peer has sent to this rank's expert e.
  LANCET_HD void send_back(const RowExchange::Part& part, std::int64_t worker, std::int64_t workers, int peer,
                           std::int64_t e) const {
    const std::int64_t slots_of = rank * (x.experts / x.ranks) + e, begin = at(part.begin, peer)[slots_of];
    const std::int32_t* rows = part.rows + e * (x.ranks + 1) + peer;
    copy(at(x.slots, peer) + (slots_of * x.capacity + begin) * x.row_bytes,
         x.buffer + (e * x.buffer_rows + rows[0]) * x.row_bytes, rows[1] - rows[0], worker, workers);
  }

  struct alignas(16) Sixteen {
    std::uint64_t words[2];
  };
  LANCET_HD void copy(std::byte* to, const std::byte* from, std::int64_t rows, std::int64_t worker,
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
#if defined(__CUDA_ARCH__)
#pragma unroll 4
#endif
    for (std::int64_t i = worker; i < bytes / std::int64_t(sizeof(T)); i += workers) out[i] = in[i];
  }
};

}  // namespace lancet::comm
