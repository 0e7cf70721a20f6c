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
// devices on the way are not delayed. Devices may have no path between them: a placement uses only such with paths.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/cost/hardware.h"

namespace lancet::placement {

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
// range, a device or link without a source, two devices of one name, a link to no device, two links of one pair, a
// hardware file that cannot be read.
Result<Cluster> read_cluster(const std::string& name_or_path);
Result<Cluster> parse_cluster(std::string_view text, std::string_view origin);

}  // namespace lancet::placement
