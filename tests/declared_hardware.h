// A hardware file for tests: 2 slow devices per node on a slow network.
#pragma once
#include <fmt/format.h>

#include <string>

namespace lancet::test {

struct DeclaredMachine {
  double network = 1;  // Gbit/s of a NIC, GB/s of links
  double latency_us = 50, core_share = 0.02, memory_gib = 16;
  double tflops = 0.02;  // of products
};

inline std::string declared_hardware(const DeclaredMachine& m = {}) {
  auto number = [](double value) { return fmt::format(R"({{"value": {}, "source": "a test"}})", value); };
  const std::string whole = R"({"points": [[1, 1, 1]], "source": "a test"})";
  return fmt::format(
      R"({{"what": "a machine of a test",
"device": {{"memory_gib": {}, "reserved_gib": {}, "memory_gb_per_s": {}, "memory_efficiency": {}, "fp32_tflops": {},
  "bf16_tflops": {}, "vector_tflops": {}, "attention_efficiency": {}, "launch_us": {},
  "fp32_efficiency": {{"points": [[8, 0.5], [64, 1]], "source": "a test"}},
  "bf16_efficiency": {{"points": [[8, 0.5], [64, 1]], "source": "a test"}}}},
"node": {{"devices": {}, "link_gb_per_s": {}, "latency_us": {}, "all_to_all_efficiency": {}, "all_reduce_efficiency": {}}},
"network": {{"nics": {}, "nic_gbit_per_s": {}, "latency_us": {}, "hop_us": {}, "message_us": {},
  "all_to_all_efficiency": {}, "all_reduce_efficiency": {}}},
"overlap": {{"core_share": {}, "core_ms_per_mb": {}, "network_beside_compute": {}, "network_beside_network": {}, "signal_us": {}}}}})",
      number(m.memory_gib), number(m.memory_gib > 1 ? 1 : 0), number(10), number(1), number(m.tflops), number(m.tflops),
      number(0.02), number(0.5), number(1), number(2), number(m.network), number(m.latency_us), whole, whole, number(1),
      number(m.network), number(m.latency_us), number(m.latency_us / 5), number(m.latency_us / 10), whole, whole,
      number(m.core_share), number(0), number(1), number(0.5), number(m.latency_us / 10));
}

}  // namespace lancet::test
