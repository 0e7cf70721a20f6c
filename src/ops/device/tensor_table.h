// Kernels over several tensors of any size in one launch: a tensor is cut in pieces, with a block for each.
#pragma once
#include "pack.h"

namespace lancet::ops::device {

// The entry that piece `piece` of the launch belongs to: the last one whose first_piece is not above it. Entry e has
// the pieces from entries[e].first_piece on; entries are in rising order.
template <class Entry>
LANCET_DEVICE int entry_of_piece(const Entry* entries, int count, std::int64_t piece) {
  int at = 0;
  for (int step = 64; step > 0; step /= 2)
    if (at + step < count && entries[at + step].first_piece <= piece) at += step;
  return at;
}

inline constexpr int most_entries = 128;  // that entry_of_piece can tell apart

}  // namespace lancet::ops::device
