#include "doubles/inproc.h"
#include "lancet/run/rank_device.h"

#include <catch2/catch.hpp>

#include "lancet/backend/cpu/parallel.h"

namespace lancet {

TEST_CASE("ranks with the same cores add up their threads") {
  const int cores = backend::cpu::cores();
  for (const int ranks : {1, 3})
    for (const int threads : {1, cores, cores + 1}) {
      const Status status = comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
        LANCET_ASSIGN(const run::SharedCores shared, run::shared_cores(world, threads));
        CHECK(shared.cores == cores);
        CHECK(shared.threads == ranks * threads);
        CHECK(shared.crowded() == (ranks * threads > cores));
        return {};
      });
      CHECK(status.ok());
    }
}

}  // namespace lancet
