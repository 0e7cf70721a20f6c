// The question of device placement: ops with precedence, unlike devices with unlike links, and what an answer is.
//
// Source: Moirai (2023), section III: ops of a graph without cycles, each on one device; a device runs one op at a
// time; a flow between two devices takes the sender's uplink and the receiver's downlink, and each of these carries one
// flow at a time. Memory is counted as the sum of what the ops of a device hold (constraint 5).
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace lancet::placement {

// An op, or several ops that coarsening made one.
struct Op {
  std::string name;
  std::vector<double> ms;  // by device; infinite where the op cannot run
  double mb = 0;           // what the op holds in its device's memory, in MB (10^6 bytes)
  int group = -1;          // ops of one group, a number from 0 on, are on one device; -1: the op is in no group
};

// What one op's result brings to another op.
struct Flow {
  int from = 0, to = 0;  // indices of ops; from < to: ops are in an order of their precedence
  double mb = 0;
};

struct Device {
  std::string name;
  double memory_mb = 0;
};

struct Problem {
  std::vector<Op> ops;
  std::vector<Flow> flows;  // at most one for a pair of ops
  std::vector<Device> devices;
  std::vector<std::vector<double>> ms_per_mb;   // [from][to]; 0 on the diagonal, infinite where there is no path
  std::vector<std::vector<double>> latency_ms;  // [from][to]; 0 on the diagonal

  int op_count() const { return static_cast<int>(ops.size()); }
  int device_count() const { return static_cast<int>(devices.size()); }
  // Milliseconds of a flow; 0 where both devices are the same, infinite where there is no path.
  double flow_ms(const Flow& flow, int from_device, int to_device) const {
    if (from_device == to_device) return 0;
    const auto from = static_cast<std::size_t>(from_device), to = static_cast<std::size_t>(to_device);
    const double rate = ms_per_mb[from][to];
    return rate == std::numeric_limits<double>::infinity() ? rate : latency_ms[from][to] + flow.mb * rate;
  }
};

// When an op or a flow runs, from the start of the first op, in milliseconds.
struct Interval {
  double start = 0, end = 0;
};

// An answer: a device for each op, and a timetable that follows the rules above.
struct Placement {
  std::vector<int> device;      // by op
  std::vector<Interval> ops;    // by op
  std::vector<Interval> flows;  // by flow; empty intervals where both ops are on one device
  double makespan_ms = 0;       // the latest end
};

}  // namespace lancet::placement
