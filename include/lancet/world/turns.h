// What ranks wait for that takes longer than they wait for each other's messages: a disk, a plan, somebody who types.
// They do so in turns, after each of which they hear of each other, so that none runs into comm.timeout_s and a rank
// that has ended is noticed.
#pragma once
#include <chrono>
#include <functional>

#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"

namespace lancet::world {

std::chrono::milliseconds turn_of(const config::Config& config);

// Collective. `work` on rank 0, in a thread of its own where there are others, while those wait. Where the ranks no
// longer hear each other, rank 0 says so once the work is done.
Status run_on_rank0(comm::Communicator& world, std::chrono::milliseconds turn, const std::function<void()>& work);

}  // namespace lancet::world
