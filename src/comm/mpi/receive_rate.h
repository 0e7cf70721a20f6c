// Estimates how much data is still to arrive and how fast it arrives; the progress thread derives its pauses from it.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace lancet::comm::mpi {

using Clock = std::chrono::steady_clock;

class ReceiveRate {
 public:
  std::size_t expected() const { return expected_; }  // bytes that open requests still have to receive
  void expect(std::size_t bytes) { expected_ += bytes; }
  void drop(std::size_t bytes) { expected_ -= bytes; }
  void arrived(std::size_t bytes) {
    expected_ -= bytes;
    arrived_ += bytes;
  }
  // Called after each test of all messages: those found together arrived in the time since the previous ones.
  void sample(Clock::time_point now) {
    if (arrived_ > 0 && flowing_) {
      // Small messages measure a round trip, not the rate of data.
      if (arrived_ < smallest_sample && expected_ > 0) return;
      const double ns_per_byte = static_cast<double>((now - since_).count()) / static_cast<double>(arrived_);
      if (arrived_ >= smallest_sample) ns_per_byte_ += (ns_per_byte - ns_per_byte_) / 4;
    }
    if (arrived_ > 0) since_ = now;
    // Data flows from the first message on; the time before it may be a late sender's.
    flowing_ = expected_ > 0 && (flowing_ || arrived_ > 0);
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
