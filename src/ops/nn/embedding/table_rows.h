// The rows of an embedding's table that a rank has, on the CPU.
#pragma once
#include "ops/cpu.h"

namespace lancet::ops {

// `rows` rows, from token `first` on, of a vocabulary of `vocabulary`.
struct TableRows {
  TableRows(std::int64_t rows, Share share) : rows(rows), first(rows * share.place), vocabulary(rows * share.shares) {}

  // A token outside of the vocabulary is a fault of the batch: no rank has its row.
  void check(const std::int32_t* tokens, std::int64_t count) const {
    for (std::int64_t i = 0; i < count; ++i)
      LANCET_CHECK(tokens[i] >= 0 && tokens[i] < vocabulary, "token {} at {} is outside a vocabulary of {}", tokens[i],
                   i, vocabulary);
  }
  // The token's row, or -1 if another rank has it.
  std::int64_t row(std::int32_t token) const {
    const std::int64_t row = token - first;
    return row >= 0 && row < rows ? row : -1;
  }

  std::int64_t rows, first, vocabulary;
};

// x = wte[row] + position, each of d elements; zeros in place of the former if row is -1, of the latter if it is null.
template <class T>
void embed_row(std::int64_t d, const T* wte, std::int64_t row, const T* position, T* x) {
  if (row < 0 && !position)
    std::fill_n(x, d, T{});
  else if (row < 0 || !position)
    std::copy_n(row < 0 ? position : wte + row * d, d, x);
  else
    cpu::map(
        d, x, [](float a, float b) { return a + b; }, wte + row * d, position);
}

}  // namespace lancet::ops
