// Opens the emulated device of a rank.
#pragma once
#include <memory>

#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/runtime/emulated_device.h"

namespace lancet::run {

// The device that a rank of config.device = emulated opens, without a world. Config errors: of the hardware file, of
// the routing, more ranks on a host than a node of that hardware has devices.
Result<std::unique_ptr<runtime::EmulatedDevice>> make_emulated_device(const config::Config& config,
                                                                      const cost::Layout& ranks_on_hosts, int rank);

// Null unless config.device is emulated. Collective. Config errors: those of make_emulated_device, the same on all
// ranks.
Result<std::unique_ptr<runtime::EmulatedDevice>> open_emulated_device(const config::Config& config,
                                                                      comm::Communicator& world, int local_ranks);

}  // namespace lancet::run
