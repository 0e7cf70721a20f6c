// The communication part of the profiler: measures the times of messages that a profile lacks.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "lancet/cost/profile.h"
#include "lancet/ir/plan.h"
#include "lancet/profiler/interference.h"

namespace lancet::profiler {

// The ranks of a group to which a rank sends, and from which it receives. Ranks are those in the group.
struct Partners {
  std::vector<int> to, from;
  std::size_t segments = 1;  // pieces of a message, each with an address of its own
  // Bytes of a segment, if `rank` sends `bytes` to its partners besides itself together.
  std::size_t segment_bytes(int rank, std::size_t bytes) const;
  // The segments of `each` bytes of the messages to or from these ranks, one after the other.
  std::vector<comm::Segment> segments_at(std::byte* memory, const std::vector<int>& ranks, std::size_t each) const;
};
// The partners of `rank` in a group of `ranks` ranks, `on_host` of which share each host. segments: of a message that
// carries rows of experts. An all-to-all also sends to the rank itself, as its kernel does.
Partners partners_of(const cost::Reach& reach, int rank, int ranks, int on_host, std::int64_t segments);

// Measures messages between the memories of hosts or of devices. All calls are collective and return the same value on
// all ranks, except launch_ms.
class NetworkMeter {
 public:
  virtual ~NetworkMeter() = default;
  // Milliseconds of a call that has the network to itself. bytes: those that a rank sends to its partners besides
  // itself together, or those of the vector (all-reduce).
  virtual Result<double> message_ms(const Partners& partners, std::size_t bytes) = 0;
  virtual Result<double> all_reduce_ms(std::size_t bytes) = 0;
  // Milliseconds from the signal of a stream to the start of the stream that waits for it.
  virtual Result<double> launch_ms() = 0;
  // times: the times of messages alone, already measured.
  virtual Result<NetworkCosts> interference(const cost::NetworkTimes& times) = 0;
};

// The communicators of one group of ranks on the two communication streams.
struct MeasuredGroup {
  comm::Group expert, reduce;
};

// A meter of options.accelerator. segments: number of segments of an all-to-all to each rank.
Result<std::unique_ptr<NetworkMeter>> make_device_meter(const ProfilerOptions& options, const MeasuredGroup& group,
                                                        std::int64_t segments);

// True if there are no times of messages of some group of ranks that the plans name, or none up to its largest
// messages.
bool lacks_messages(std::span<const ir::Plan> plans, const cost::Profile& profile);

// Measures the times that the profile lacks; returns true if it measured any. Collective.
Result<bool> fill_network(cost::Profile& profile, std::span<const ir::Plan> plans, const ProfilerOptions& options);

}  // namespace lancet::profiler
