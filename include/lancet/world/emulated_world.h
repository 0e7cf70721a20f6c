// A run of one process that takes itself for one rank of many (comm.transport = "emulated").
#pragma once
#include <atomic>
#include <memory>

#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"

namespace lancet::world {

// What the network's calls took by its declaration, in milliseconds. Streams add from their own threads.
struct DeclaredTimes {
  std::atomic<double> exchanges{0}, all_reduces{0};
};

// The world of such a run, with the links of comm.network; null where another transport is asked for. Config errors:
// several processes, hardware that is not declared. times: added to with every call; outlives the world.
Result<std::unique_ptr<comm::Communicator>> emulated_world(const config::Config& config,
                                                           const comm::Communicator& world,
                                                           DeclaredTimes* times = nullptr);

}  // namespace lancet::world
