// XLA's cost rule of a windowed einsum, on the times of a step's ring.
#pragma once
#include <algorithm>
#include <cstdint>

namespace lancet::schedule {

// Milliseconds of a ring, and of what it takes the place of.
struct RingTimes {
  double compute = 0, messages = 0;  // in windows; compute: with copies, and with what messages take of it
  double whole_compute = 0, whole_message = 0;

  // True if the ring is shorter than product and collective one after the other. One window's computation is before or
  // after all messages.
  bool pays(std::int64_t windows) const {
    return std::max(compute, messages + compute / double(windows)) < whole_compute + whole_message;
  }
};

}  // namespace lancet::schedule
