// What streams on which a wire is emulated can do as well: a delay that holds what was put on the stream since an
// earlier point, as a message's time holds its copies.
#pragma once
#include "lancet/base/result.h"

namespace lancet::backend {

class PacedStream {
 public:
  virtual ~PacedStream() = default;
  // From here, when the stream comes to it.
  virtual Status mark() = 0;
  // Keeps the stream busy until so long after the last mark; not at all where that is over.
  virtual Status delay_from_mark(double milliseconds) = 0;
};

}  // namespace lancet::backend
