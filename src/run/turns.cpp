// After each turn all ranks join a small collective, "is the work done on any rank?"; it keeps every wait shorter than
// comm.timeout_s and fails if a rank has ended.
#include "lancet/run/turns.h"

#include <algorithm>
#include <cstdint>
#include <future>

#include "lancet/comm/agree.h"

namespace lancet::run {

std::chrono::milliseconds turn_of(const config::Config& config) {
  return std::chrono::milliseconds(std::clamp<std::int64_t>(std::int64_t(config.comm.timeout_s * 250), 1, 200));
}

Status run_on_rank0(comm::Communicator& world, std::chrono::milliseconds turn, const std::function<void()>& work) {
  if (world.size() == 1) {
    work();
    return {};
  }
  std::future<void> working;
  if (world.rank() == 0) working = std::async(std::launch::async, work);
  for (bool done = false; !done;) {
    const bool mine = working.valid() && working.wait_for(turn) == std::future_status::ready;
    LANCET_ASSIGN(done, any(world, mine));
  }
  if (working.valid()) working.get();
  return {};
}

}  // namespace lancet::run
