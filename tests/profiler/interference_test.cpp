#include "doubles/inproc.h"
#include "lancet/profiler/profiler.h"

#include <catch2/catch.hpp>
#include <mutex>

#include "lancet/comm/communicator.h"

namespace lancet::profiler {

TEST_CASE("the cost of a network is measured with equal results on all ranks") {
  std::mutex mutex;
  std::vector<NetworkCosts> found;
  const Status status = comm::run_inproc(2, [&](comm::Communicator& expert) -> Status {
    LANCET_ASSIGN(const auto reduce, expert.duplicate());
    LANCET_ASSIGN(const NetworkCosts costs, measure_interference(expert, *reduce, 1));
    std::lock_guard lock(mutex);
    found.push_back(costs);
    return {};
  });
  REQUIRE((status.ok() ? "" : status.error().message) == "");
  REQUIRE(found.size() == 2);
  // Decisions depend on them, so they must not differ.
  CHECK(found[0].bytes == found[1].bytes);
  CHECK(found[0].all_to_all == found[1].all_to_all);
  CHECK(found[0].all_reduce == found[1].all_reduce);
  CHECK(found[0].interference.network_beside_compute == found[1].interference.network_beside_compute);
  CHECK(found[0].interference.network_beside_network == found[1].interference.network_beside_network);
}

TEST_CASE("the measured message is one that takes 60 ms alone, whatever the load of the machine") {
  // 60 ms per MB, latency included, and more if others load the machine: at most a MB then.
  const auto ms = [](double bytes) { return bytes * 60 / (1 << 20); };
  const auto of_ranks = [&](std::span<const int>, double bytes) { return ms(bytes); };
  const auto expert = comm::make_mirrored_world(2, {"known", of_ranks, of_ranks});
  const auto reduce = expert->duplicate();
  REQUIRE(reduce.ok());
  const auto costs = measure_interference(*expert, **reduce, 1);
  REQUIRE(costs.ok());
  CHECK(costs->bytes <= 1 << 20);
  CHECK(costs->bytes > 64 << 10);
  CHECK(costs->seconds >= 16 * ms(double(costs->bytes)) * 1e-3);  // each stream's 4 rounds, alone and beside compute
}

TEST_CASE("a message's cost to compute is a line through two sizes, within the processor time") {
  const auto stream = [](double core_ms, double cpu_ms) { return CallCost{.core_ms = core_ms, .cpu_ms = cpu_ms}; };
  using cost::CoreCost;
  CHECK(core_cost(stream(2, 9), 1e6, stream(5, 9), 4e6) == CoreCost{1, 1});
  CHECK(core_cost(stream(20, 2), 1e6, stream(50, 5), 4e6) == CoreCost{1, 1});
  CHECK(core_cost(stream(-1, 9), 1e6, stream(3, 9), 4e6) == CoreCost{0, 1});  // noise yields no gain
  CHECK(core_cost(stream(5, 9), 1e6, stream(2, 9), 4e6) == CoreCost{5, 0});
}

TEST_CASE("a single rank has no network cost") {
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
      *self, [&]() -> Status { return ++calls < 4 ? Status() : Status(communication_error("network down")); }, 1e-9);
  REQUIRE_FALSE(cost.ok());
  CHECK(cost.error().message == "network down");
  CHECK(calls == 4);  // warm-up, trial, alone, beside
}

}  // namespace lancet::profiler
