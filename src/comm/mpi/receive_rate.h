#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace lancet::comm::mpi {

using Clock = std::chrono::steady_clock;

// How much data is to come, and how fast it comes.
class ReceiveRate {
 public:
  std::size_t expected() const { return expected_; }  // bytes that open requests still wait for
  void expect(std::size_t bytes) { expected_ += bytes; }
  void drop(std::size_t bytes) { expected_ -= bytes; }
  void arrived(std::size_t bytes) {
    expected_ -= bytes;
    arrived_ += bytes;
  }
  // After each test of everything: messages found together came in the time since the last ones.
  void sample(Clock::time_point now) {
    if (arrived_ > 0 && flowing_) {
      // Small messages say how long a round trip is, not how fast data comes.
      if (arrived_ < smallest_sample && expected_ > 0) return;
      const double ns_per_byte = static_cast<double>((now - since_).count()) / static_cast<double>(arrived_);
      if (arrived_ >= smallest_sample) ns_per_byte_ += (ns_per_byte - ns_per_byte_) / 4;
    }
    if (arrived_ > 0) since_ = now;
    flowing_ = expected_ > 0 && (flowing_ || arrived_ > 0);  // from the first message on: its sender may have been late
    arrived_ = 0;
  }
  std::chrono::nanoseconds time_of(double bytes) const {
    return std::chrono::nanoseconds(static_cast<std::int64_t>(ns_per_byte_ * bytes));
  }

 private:
  static constexpr std::size_t smallest_sample = 32 << 10;
  std::size_t expected_ = 0, arrived_ = 0;
  bool flowing_ = false;
  Clock::time_point since_;
  double ns_per_byte_ = 0;
};

}  // namespace lancet::comm::mpi
