// Runs slow work on rank 0 (disk, planning, user input) while the ranks keep sending short messages, one per turn,
// so that no rank runs into comm.timeout_s and a rank that has ended is noticed.
#pragma once
#include <chrono>
#include <functional>

#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"

namespace lancet::run {

// The length of a turn: a quarter of comm.timeout_s, within 1 to 200 ms.
std::chrono::milliseconds turn_of(const config::Config& config);

// Collective: runs `work` on rank 0 while the other ranks wait; with several ranks, it runs on a thread of its own. If
// the ranks lose contact, rank 0 returns the communication error after the work has ended.
Status run_on_rank0(comm::Communicator& world, std::chrono::milliseconds turn, const std::function<void()>& work);

}  // namespace lancet::run
