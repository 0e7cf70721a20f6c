// The messages of an all-to-all, from the counts of its parts. The slots of expert e on each rank correspond to rows of
// e's buffer on rank e / local. A pair of ranks sends experts in rising order, so that sends and receives match.
#pragma once
#include <cstdint>
#include <vector>

#include "lancet/comm/communicator.h"
#include "lancet/ops/kernel.h"

namespace lancet::ops {

// The counts of a part, in host memory: the slots of each expert that it fills, and where each source rank's rows
// begin.
struct ExchangePart {
  const std::int32_t* filled;  // [E, 2]
  const std::int32_t* rows;    // [E/W, W+1]
};

struct ExchangeSegments {
  std::vector<comm::Segment> sends, receives;

  // For an all_to_all (there) or an all_to_all_back of `parts` parts on `ranks` ranks.
  ExchangeSegments(const KernelArgs& args, bool there, std::int64_t ranks, std::size_t parts)
      : there_(there), ranks_(ranks), experts_(args.operands[1].shape()[0]), local_(experts_ / ranks) {
    const TensorView &slots = there ? args.operands[0] : args.results[0],
                     &buffer = there ? args.results[0] : args.operands[0];
    slots_ = slots.as<std::byte>();
    buffer_ = buffer.as<std::byte>();
    row_bytes_ = std::size_t(slots.shape()[2]) * std::size_t(size_of(slots.dtype()));
    slot_stride_ = std::size_t(slots.shape()[1]) * row_bytes_;
    buffer_stride_ = std::size_t(buffer.shape()[1]) * row_bytes_;
    sends.resize(std::size_t(experts_) * parts);
    receives.resize(std::size_t(experts_) * parts);
  }

  // Sets the sends and receives of part `number`.
  void lay_out(std::size_t number, const ExchangePart& part) {
    const std::size_t first = number * std::size_t(experts_);
    std::vector<comm::Segment>&at_slots = there_ ? sends : receives, &at_buffer = there_ ? receives : sends;
    for (std::int64_t e = 0; e < experts_; ++e) {
      const std::int32_t begin = part.filled[2 * e], end = part.filled[2 * e + 1];
      at_slots[first + std::size_t(e)] = {int(e / local_),
                                          slots_ + std::size_t(e) * slot_stride_ + std::size_t(begin) * row_bytes_,
                                          std::size_t(end - begin) * row_bytes_};
    }
    for (std::int64_t s = 0; s < ranks_; ++s)
      for (std::int64_t e = 0; e < local_; ++e) {
        const std::int32_t* row = part.rows + e * (ranks_ + 1) + s;
        at_buffer[first + std::size_t(s * local_ + e)] = {
            int(s), buffer_ + std::size_t(e) * buffer_stride_ + std::size_t(row[0]) * row_bytes_,
            std::size_t(row[1] - row[0]) * row_bytes_};
      }
  }

 private:
  bool there_;
  std::int64_t ranks_, experts_, local_;                 // local_: experts of one rank
  std::byte *slots_, *buffer_;                           // [E, C, D], [E/W, W*C, D]
  std::size_t slot_stride_, buffer_stride_, row_bytes_;  // bytes of an expert, and of a row
};

}  // namespace lancet::ops
