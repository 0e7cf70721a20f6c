// Sorts the positions of a batch's tokens by token id, equal ids by position, for embedding_dw. An id is a row of dw.
//
// It is a radix sort from the lowest digit up, with 8 bits per pass. A pass is a stable counting sort
// (device/counting.h) in three launches: CountDigits counts the digits in each chunk of 256 positions; ScanChunks adds
// up, for each digit, the counts of the chunks before; PlaceDigits writes each position to begin of its digit + count
// of the chunks before + number of equal digits before it in the chunk. The passes write to two buffers in turn. The
// result is the same in every run, so embedding_dw adds rows in the same order.
#pragma once
#include "ops/device/counting.h"

namespace lancet::ops::embedding {

using namespace device;

inline constexpr int radix = 256;
inline constexpr int chunk = 256;  // positions per block

// Rows of dw by position, of the tokens from `first` on. Tokens of no row get the id `rows`, which sorts last.
struct Ids {
  const std::int32_t* tokens;
  std::int32_t rows;
  std::int64_t first;

  LANCET_DEVICE std::int32_t operator()(std::int32_t position) const {
    const std::int64_t id = tokens[position] - first;
    return id >= 0 && id < rows ? std::int32_t(id) : rows;
  }
};

// One pass over the digit at bit `shift`.
struct Pass {
  Ids ids;
  const std::int32_t* from;  // [n] result of the pass before; null: positions in order
  std::int32_t* to;          // [n]
  std::int32_t n, shift;
  std::int32_t* counts;  // [radix, chunks]
  std::int32_t* totals;  // [radix]
  std::int64_t chunks;

  LANCET_DEVICE std::int32_t position(std::int64_t i) const { return from ? from[i] : std::int32_t(i); }
  LANCET_DEVICE std::int32_t digit(std::int32_t position) const { return (ids(position) >> shift) & (radix - 1); }
};

struct CountDigits {
  static constexpr int threads = chunk;
  struct Shared {
    std::int32_t counts[radix];
  };
  Pass pass;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    const std::int64_t i = block.index() * chunk + block.thread();
    shared.counts[block.thread()] = 0;
    block.sync();
    if (i < pass.n) block.atomic_add(&shared.counts[pass.digit(pass.position(i))], 1);
    block.sync();
    pass.counts[block.thread() * pass.chunks + block.index()] = shared.counts[block.thread()];
  }
};

struct PlaceDigits {
  static constexpr int threads = chunk;
  struct Shared {
    std::int32_t digits[chunk], first[radix];
  };
  Pass pass;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    const std::int64_t i = block.index() * chunk + block.thread();
    const std::int32_t position = i < pass.n ? pass.position(i) : 0, digit = i < pass.n ? pass.digit(position) : -1;
    std::int32_t total;
    shared.first[block.thread()] = block.exclusive_scan(pass.totals[block.thread()], total);
    shared.digits[block.thread()] = digit;
    block.sync();
    if (i >= pass.n) return;
    const std::int32_t rank = count_equal(shared.digits, block.thread(), digit);
    pass.to[shared.first[digit] + pass.counts[digit * pass.chunks + block.index()] + rank] = position;
  }
};

// The launches of all passes; allocates its buffers from `scratch`.
class Sort {
 public:
  Sort(Scratch& scratch, const TensorView& tokens, std::int64_t rows, std::int64_t first)
      : ids_{tokens.as<std::int32_t>(), std::int32_t(rows), first},
        n_(tokens.elements()),
        chunks_(divide_up(n_, chunk)) {
    for (auto& order : orders_) order = scratch.take<std::int32_t>(n_);
    counts_ = scratch.take<std::int32_t>(radix * chunks_);
    totals_ = scratch.take<std::int32_t>(radix);
    while (rows >> (8 * passes_)) ++passes_;  // enough digits for the id `rows`
  }

  const Ids& ids() const { return ids_; }
  const std::int32_t* order() const { return orders_[passes_ % 2]; }

  Status run(backend::Stream& stream) const {
    for (int p = 0; p < passes_; ++p) {
      const Pass pass{
          ids_,   p == 0 ? nullptr : orders_[p % 2], orders_[(p + 1) % 2], std::int32_t(n_), 8 * p, counts_, totals_,
          chunks_};
      LANCET_TRY(launch(stream, chunks_, CountDigits{pass}));
      LANCET_TRY(launch(stream, radix, ScanChunks{counts_, chunks_, totals_}));
      LANCET_TRY(launch(stream, chunks_, PlaceDigits{pass}));
    }
    return {};
  }

 private:
  Ids ids_;
  std::int64_t n_, chunks_;
  int passes_ = 0;
  std::int32_t *orders_[2], *counts_, *totals_;
};

}  // namespace lancet::ops::embedding
