// The question of device placement: ops with precedence, unlike devices with unlike links, and what an answer is.
//
// Source: Moirai (2023), section III: ops of a graph without cycles, each on one device; a device runs one op at a
// time; a flow between two devices takes the sender's uplink and the receiver's downlink, and each of these carries one
// flow at a time. Memory is counted as the sum of what the ops of a device hold (constraint 5).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/cost/hardware.h"

namespace lancet::placement {

// An op, or several ops that coarsening made one.
struct Op {
  std::string name;
  std::vector<double> ms;  // by device
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
  std::vector<std::vector<double>> ms_per_mb, latency_ms;  // [from][to]; 0 on the diagonal

  int op_count() const { return static_cast<int>(ops.size()); }
  int device_count() const { return static_cast<int>(devices.size()); }
  // Milliseconds of a flow; 0 where both devices are the same.
  double flow_ms(const Flow& flow, int from_device, int to_device) const {
    const auto from = static_cast<std::size_t>(from_device), to = static_cast<std::size_t>(to_device);
    return latency_ms[from][to] + flow.mb * ms_per_mb[from][to];
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

// What of the rules of problem.h a placement breaks.

// One line for each rule broken, empty for a valid answer: sizes of the tables, devices in range, groups on one device,
// durations of ops and flows, no start before 0, an op after the flows that enter it and a flow after the op that makes
// it, one op at a time on a device, one flow at a time on an uplink and on a downlink, memory, and the makespan. Times
// may differ by a billionth of the makespan. Empty intervals take no device and no link.
std::vector<std::string> violations(const Problem& problem, const Placement& placement);

// A cluster file: unlike devices and the links between them.
//
//   {
//     "what": "two unlike GPUs",
//     "devices": [
//       {"name": "fast", "hardware": "p3dn-v100", "up_gbit_per_s": 44, "down_gbit_per_s": 42, "latency_us": 5,
//        "source": "measured"},
//       {"name": "slow", "hardware": "p3dn-v100:device.fp32_tflops=7.85", "memory_mb": 8000, "source": "..."}
//     ],
//     "links": [{"from": "fast", "to": "slow", "gbit_per_s": 44.26, "latency_us": 2, "source": "..."}]
//   }
//
// hardware: a name or a file as for --on (cost/hardware.h), relative to the current folder; its section `device` gives
// the times of ops. memory_mb: MB (10^6 bytes) that the ops of the device may hold; left out: the hardware's memory
// less what it reserves. up, down and latency: the device's link to the network that joins all devices with such a
// link; a flow passes the sender's uplink and the receiver's downlink and has the latency of both. A link goes one way.
// A pair without a link of its own takes the path whose least bandwidth is greatest, as in Moirai, section III-C; the
// devices on the way are not delayed. There is a path from every device to every other one.
struct Cluster {
  std::string name;  // the file's name without its extension
  std::string what;
  struct Device {
    std::string name;
    cost::Hardware hardware;
    std::string hardware_file = {};  // as the cluster file names it, with the values behind its name
    double memory_mb = 0;
  };
  std::vector<Device> devices;
  // As in Problem.
  std::vector<std::vector<double>> ms_per_mb, latency_ms;
};

// Reads NAME (configs/clusters/NAME.json) or a path, in the current folder or among the files that come with the
// program. Config errors name the file and the field: no such file, an unknown field, a value of another kind or out of
// range, a device or link without a source, two devices of one name, a link to no device, two links of one pair, two
// devices without a path, a hardware file that cannot be read.
Result<Cluster> read_cluster(const std::string& name_or_path);
Result<Cluster> parse_cluster(std::string_view text, std::string_view origin);

}  // namespace lancet::placement
