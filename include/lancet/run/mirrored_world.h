// Makes the world of a single process that trains as one rank of many (comm.transport = "mirrored").
#pragma once
#include <atomic>
#include <memory>

#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"

namespace lancet::run {

// Total declared time of the network's calls, in milliseconds. Each stream adds from its own thread.
struct DeclaredTimes {
  std::atomic<double> all_to_alls{0}, all_reduces{0};
};

// Returns the mirrored world with the links of comm.network, or null if the config requests another transport. Config
// errors: several processes, undeclared hardware. times: every call adds to it; it outlives the world.
Result<std::unique_ptr<comm::Communicator>> mirrored_world(const config::Config& config,
                                                           const comm::Communicator& world,
                                                           DeclaredTimes* times = nullptr);

}  // namespace lancet::run
