// A communicator whose messages are a fraction of those that are asked for.
#pragma once
#include <memory>

#include "lancet/comm/communicator.h"

namespace lancet::comm {

// Forwards every call to `communicator`, which outlives it, with the same segments in the same order. A segment of n
// bytes becomes one of n / scale, rounded up, and a vector of n elements one of n / scale, in as many rounds. They go
// from and to memory of this object, so the caller's data is neither read nor written. broadcast() and barrier() are
// not scaled.
std::unique_ptr<Communicator> make_scaled(Communicator& communicator, double scale);

}  // namespace lancet::comm
