#include <catch2/catch.hpp>

#include "comm/mpi/receive_rate.h"

namespace lancet::comm::mpi {

using namespace std::chrono_literals;

TEST_CASE("the receive rate is measured from data between two samples, without waits for a late sender") {
  ReceiveRate rate;
  Clock::time_point now{};
  CHECK(rate.time_of(1e6) == 0ns);  // no sample yet
  rate.expect(1'000'000);
  rate.sample(now += 1s);  // the sender was late
  rate.arrived(100'000);
  rate.sample(now += 1s);  // the first message: its send time is unknown
  CHECK(rate.time_of(1e6) == 0ns);
  for (int i = 0; i < 4; ++i) {
    rate.arrived(50'000);
    rate.arrived(50'000);
    rate.sample(now += 1ms);
  }
  CHECK(rate.expected() == 500'000);
  // 10 ns a byte; a new sample counts for a quarter.
  CHECK(double(rate.time_of(1e6).count()) == Approx(10e6 * (1 - 0.75 * 0.75 * 0.75 * 0.75)).epsilon(1e-6));
  const auto known = rate.time_of(1e6);
  rate.drop(500'000);
  rate.sample(now += 1s);
  CHECK(rate.expected() == 0);

  // Small messages measure round trips; the next flow starts a new measurement.
  rate.expect(8);
  rate.sample(now += 1s);
  rate.arrived(8);
  rate.sample(now += 1s);
  CHECK(rate.time_of(1e6) == known);
}

TEST_CASE("small messages of one flow are measured together") {
  ReceiveRate rate;
  Clock::time_point now{};
  rate.expect(1'000'000);
  rate.arrived(1000);
  rate.sample(now += 1ms);
  for (int i = 0; i < 4; ++i) {
    rate.arrived(10'000);
    rate.sample(now += 1ms);
  }
  CHECK(double(rate.time_of(1e6).count()) == Approx(100e6 / 4).epsilon(1e-6));  // 40 KB in 4 ms
}

}  // namespace lancet::comm::mpi
