#include "lancet/runtime/interference.h"

#include <catch2/catch.hpp>
#include <mutex>

namespace lancet::runtime {

TEST_CASE("what a wire costs is measured alike on all ranks") {
  std::mutex mutex;
  std::vector<WireCosts> found;
  const Status status = comm::run_inproc(2, [&](comm::Communicator& expert) -> Status {
    LANCET_ASSIGN(const auto reduce, expert.duplicate());
    LANCET_ASSIGN(const WireCosts costs, measure_interference(expert, *reduce, 1));
    std::lock_guard lock(mutex);
    found.push_back(costs);
    return {};
  });
  REQUIRE((status.ok() ? "" : status.error().message) == "");
  REQUIRE(found.size() == 2);
  CHECK(found[0].bytes >= 256 << 10);
  CHECK(found[0].bytes <= 8 << 20);
  CHECK(found[0].all_to_all.ms(1e6) >= 0);
  for (double speed : {found[0].interference.wire_beside_compute, found[0].interference.wire_beside_wire}) {
    CHECK(speed >= 0.1);
    CHECK(speed <= 1);
  }
  // Decisions rest on them, so that they must not differ.
  CHECK(found[0].bytes == found[1].bytes);
  CHECK(found[0].all_to_all == found[1].all_to_all);
  CHECK(found[0].all_reduce == found[1].all_reduce);
  CHECK(found[0].interference.wire_beside_compute == found[1].interference.wire_beside_compute);
  CHECK(found[0].interference.wire_beside_wire == found[1].interference.wire_beside_wire);
}

TEST_CASE("one rank alone has no wire that could cost") {
  const auto self = comm::make_self();
  const auto costs = measure_interference(*self, *self, 1);
  REQUIRE(costs.ok());
  CHECK(costs->all_to_all.ms(1e6) == 0);
  CHECK(costs->bytes == 0);
}

TEST_CASE("a call that fails beside computation ends the measurement with its error") {
  const auto self = comm::make_self();
  ComputeLoop loop(1);
  int calls = 0;
  const auto cost = loop.measure(
      *self, [&]() -> Status { return ++calls < 4 ? Status() : Status(communication_error("wire on fire")); }, 1e-9);
  REQUIRE_FALSE(cost.ok());
  CHECK(cost.error().message == "wire on fire");
  CHECK(calls == 4);  // warm-up, trial, alone, beside
}

}  // namespace lancet::runtime
