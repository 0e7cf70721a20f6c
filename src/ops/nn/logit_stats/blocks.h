// The blocks of columns of a rank's logits [rows, columns], for both devices.
#pragma once
#include <cstdint>

#include "lancet/ops/kernel.h"

namespace lancet::ops {

struct LogitBlocks {
  LogitBlocks(const TensorView& logits, const TensorView& stats, const KernelArgs& args)
      : rows(logits.shape().rows()),
        columns(logits.shape().back()),
        blocks(stats.shape()[0]),
        width(columns / blocks),
        vocabulary(args.attributes.integer("vocabulary")),
        first(columns * args.share().place) {}

  // The place in the vocabulary of a block's first column.
  LANCET_HD std::int64_t begin(std::int64_t block) const { return first + block * width; }
  // The columns of a block that are no padding: the first ones.
  LANCET_HD std::int64_t valid(std::int64_t block) const {
    const std::int64_t left = vocabulary - begin(block);
    return left < 0 ? 0 : left < width ? left : width;
  }
  // The column of a block that is the target's, or -1.
  LANCET_HD std::int64_t column(std::int64_t block, std::int32_t target) const {
    const std::int64_t at = target - begin(block);
    return at >= 0 && at < valid(block) ? at : -1;
  }

  std::int64_t rows, columns, blocks, width, vocabulary, first;
};

}  // namespace lancet::ops
