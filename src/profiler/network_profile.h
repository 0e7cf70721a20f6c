// Communication's part of the profiler.
#pragma once
#include <memory>

#include "lancet/profiler/interference.h"
#include "lancet/profiler/profiler.h"

namespace lancet::profiler {

// What measures messages, between the memories of hosts or of devices. All calls are collective and give the same on
// all ranks but for launch_ms.
class NetworkMeter {
 public:
  virtual ~NetworkMeter() = default;
  // Milliseconds of a call with the wire to itself. bytes: what a rank sends to the others together; the vector.
  virtual Result<double> all_to_all_ms(std::size_t bytes) = 0;
  virtual Result<double> all_reduce_ms(std::size_t bytes) = 0;
  // From the signal of a stream to the start of the one that waits for it.
  virtual Result<double> launch_ms() = 0;
  // Whether the ranks' kernels reach each other's memory, for messages of up to `largest` bytes; then the next three
  // may be called. bytes: as of all_to_all_ms.
  virtual Result<bool> open_windows(std::size_t /*largest*/) { return false; }
  virtual Result<double> window_ms(std::size_t /*bytes*/) { return internal_error("no windows on hosts"); }
  virtual Result<double> counts_wait_ms() { return internal_error("no windows on hosts"); }  // cost::WindowTimes
  // Of messages through windows, by what they take alone.
  virtual Result<cost::CoreCost> window_core(const std::vector<cost::Point>& /*points*/) {
    return internal_error("no windows on hosts");
  }
  // times: what has been measured so far.
  virtual Result<NetworkCosts> interference(const cost::NetworkTimes& times) = 0;
};

// Of options.accelerator, on options.device_streams. segments: an all-to-all's, to each rank.
Result<std::unique_ptr<NetworkMeter>> make_device_meter(const ProfilerOptions& options, std::int64_t segments);

// Measures what the profile lacks; true if anything was. Collective.
Result<bool> fill_network(cost::Profile& profile, std::span<const ir::Plan> plans, const ProfilerOptions& options);

}  // namespace lancet::profiler
