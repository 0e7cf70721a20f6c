#include "emulated_link.h"

#include <fmt/format.h>

namespace lancet::placement {

std::string with_link(const Cluster::Device& device, double gbit_per_s, double latency_ms) {
  const auto [file, values] = cost::split_values(device.hardware_file);
  const double us = latency_ms * 1e3;
  return fmt::format(
      "{}:{}{}device.memory_gib={:.6f},device.reserved_gib=0,network.nics={},network.nic_gbit_per_s={:.6g},"
      "network.all_to_all_efficiency=1,network.all_reduce_efficiency=1,network.latency_us={:.6g},network.hop_us={:.6g}",
      file, values, values.empty() ? "" : ",", device.memory_mb * 1e6 / (1 << 30), device.hardware.node.devices,
      gbit_per_s, us, us);
}

}  // namespace lancet::placement
