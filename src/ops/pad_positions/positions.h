// How the rows of S tokens and of S' positions of a sequence are in memory, for kernels of host and device.
#pragma once
#include <cstdint>
#include <cstring>

#include "lancet/base/hd.h"
#include "lancet/ops/kernel.h"

namespace lancet::ops {

// `sequences` sequences, each of `from` rows of `run` elements, become as many of `to` rows. Of a sequence the first
// rows are kept; if `to` is more, what is after them is padding.
struct PositionRows {
  std::int64_t sequences, from, to, run;

  // Of operand `operand` and the result of the same number; dimension `axis` of the operand holds the rows.
  PositionRows(const KernelArgs& args, std::size_t operand, std::int64_t axis, std::int64_t from_, std::int64_t to_)
      : sequences(1), from(from_), to(to_), run(1) {
    const Shape& shape = args.operands[operand].shape();
    for (int i = 0; i <= int(axis); ++i) sequences *= shape[i];
    for (int i = int(axis) + 1; i < shape.rank(); ++i) run *= shape[i];
    sequences /= from;
  }
  static PositionRows padded(const KernelArgs& args, std::size_t operand, std::int64_t axis) {
    return {args, operand, axis, args.attributes.integer("sequence"), args.attributes.integer("positions")};
  }
  static PositionRows cut(const KernelArgs& args) {
    return {args, 0, args.attributes.integer("axis", 1), args.attributes.integer("positions"),
            args.attributes.integer("sequence")};
  }

  std::int64_t results() const { return sequences * to; }  // rows
  // The row of the operand that becomes row r of the result; -1 if that is padding.
  LANCET_HD std::int64_t source(std::int64_t r) const {
    const std::int64_t place = r % to;
    return place < from ? r / to * from + place : -1;
  }
};

// The byte that all bytes of padding have: padding is 0, or -1 in integers.
enum class Padding : unsigned char { zero = 0, minus_one = 0xff };

}  // namespace lancet::ops
