// Interface of streams that emulate a network: a delay that counts from an earlier point of the stream, so that the
// copies of an emulated message are part of its duration.
#pragma once
#include "lancet/base/result.h"

namespace lancet::backend {

class PacedStream {
 public:
  virtual ~PacedStream() = default;
  virtual Status mark() = 0;  // records the time at which the stream reaches this point
  // Keeps the stream busy until this time after the last mark; does nothing if it has passed already.
  virtual Status delay_from_mark(double milliseconds) = 0;
};

}  // namespace lancet::backend
