// A run of one process that takes itself for one rank of many (comm.transport = "emulated").
#pragma once
#include <memory>

#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"

namespace lancet::train {

// The world of such a run, with the links of comm.network; null where another transport is asked for. Config errors:
// several processes, hardware that is not declared.
Result<std::unique_ptr<comm::Communicator>> emulated_world(const config::Config& config,
                                                           const comm::Communicator& world);

}  // namespace lancet::train
