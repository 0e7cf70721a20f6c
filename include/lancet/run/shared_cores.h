// Finds ranks that compute on the same cores.
#pragma once
#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"

namespace lancet::run {

struct SharedCores {
  int threads = 0, cores = 0;
  bool crowded() const { return threads > cores; }
};

// Collective: of the sets of cores that ranks may run on, the one with the most threads a core. threads: of this rank.
// Ranks share a set if they run under the same kernel with the same affinity, whatever their hosts are called.
Result<SharedCores> shared_cores(comm::Communicator& world, int threads);

}  // namespace lancet::run
