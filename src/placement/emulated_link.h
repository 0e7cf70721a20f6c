// A device of a cluster as a host of an emulated one.
#pragma once
#include <string>

#include "lancet/placement/cluster.h"

namespace lancet::placement {

// The hardware of a device whose one link has this rate and latency, alone on its host: a value of emulated.hardware.
std::string with_link(const Cluster::Device& device, double gbit_per_s, double latency_ms);

}  // namespace lancet::placement
