#include "lancet/run/shared_cores.h"

#include <sched.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "lancet/backend/cpu/parallel.h"
#include "lancet/base/hash.h"
#include "lancet/comm/collect.h"

namespace lancet::run {
namespace {

struct Rank {
  std::uint64_t set = 0;  // hash of the kernel's boot and of the affinity
  int threads = 0, cores = 0;
};

std::uint64_t set_of_cores() {
  std::string text;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), text);
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (::sched_getaffinity(0, sizeof cores, &cores) == 0)
    text.append(reinterpret_cast<const char*>(&cores), sizeof cores);
  return hash64(text);
}

}  // namespace

Result<SharedCores> shared_cores(comm::Communicator& world, int threads) {
  LANCET_ASSIGN(const std::vector<Rank> ranks,
                comm::collect(world, Rank{set_of_cores(), threads, backend::cpu::cores()}));
  SharedCores fullest{0, 1};
  for (const Rank& rank : ranks) {
    SharedCores shared{0, rank.cores};
    for (const Rank& other : ranks)
      if (other.set == rank.set) shared.threads += other.threads;
    if (shared.threads * fullest.cores > fullest.threads * shared.cores) fullest = shared;
  }
  return fullest;
}

}  // namespace lancet::run
