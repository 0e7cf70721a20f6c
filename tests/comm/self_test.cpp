#include <catch2/catch.hpp>
#include <map>
#include <string>

#include "comm/contract.h"
#include "comm/mpi/receive_rate.h"
#include "lancet/comm/communicator.h"
#include "lancet/comm/mpi.h"
#include "lancet/comm/network_check.h"

namespace lancet {

using namespace comm;
using Catch::Matchers::Contains;

TEST_CASE("one rank alone fulfils the contract") {
  auto self = make_self();
  CHECK(self->size() == 1);
  CHECK(self->transport() == "self");
  for (const auto& test : contract::cases) {
    if (std::string(test.name) == "network") continue;  // nothing to measure
    INFO(test.name);
    const Status status = test.run(*self);
    if (!status) FAIL(status.error().message);
  }
  std::byte out[4] = {}, in[8] = {};
  const Segment send{0, out, 4}, receive{0, in, 8};
  const Status uneven = self->send_receive({&send, 1}, {&receive, 1});
  REQUIRE_FALSE(uneven);
  CHECK_THAT(uneven.error().message, Contains("expects 8 bytes from itself, it sends 4"));
}

TEST_CASE("abort reaches the duplicates of a single rank's communicator") {
  auto self = make_self();
  auto stream = self->duplicate();
  REQUIRE(stream);
  self->abort("the end");
  const Status status = (*stream)->barrier();
  REQUIRE_FALSE(status);
  CHECK(status.error().message == "communication was aborted: the end");
}

TEST_CASE("the launch is read from the launcher's variables") {
  using Variables = std::map<std::string, std::string>;
  const auto detect = [](const Variables& variables) {
    const Launch l = detect_launch([&](const char* name) -> const char* {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
    return std::vector<int>{l.rank, l.size, l.local_rank, l.local_size};
  };
  CHECK(detect({}) == std::vector<int>{0, 1, 0, 1});
  const Variables open_mpi = {{"OMPI_COMM_WORLD_RANK", "5"},
                              {"OMPI_COMM_WORLD_SIZE", "8"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
  CHECK(detect(open_mpi) == std::vector<int>{5, 8, 1, 4});
  CHECK(detect({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}}) ==
        std::vector<int>{3, 4, 1, 2});
  Variables slurm = {{"SLURM_PROCID", "6"},
                     {"SLURM_STEP_NUM_TASKS", "8"},
                     {"SLURM_LOCALID", "2"},
                     {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"}};
  CHECK(detect(slurm) == std::vector<int>{6, 8, 2, 4});
  slurm.insert(open_mpi.begin(), open_mpi.end());  // mpirun inside a Slurm job
  CHECK(detect(slurm) == std::vector<int>{5, 8, 1, 4});
  // A batch script has a rank and the job's tasks, but no step that started it.
  CHECK(detect({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}) == std::vector<int>{0, 1, 0, 1});
  CHECK(detect({{"PMI_RANK", "9"}, {"PMI_SIZE", "4"}}) == std::vector<int>{0, 1, 0, 1});
  CHECK(detect({{"PMI_RANK", "x"}, {"PMI_SIZE", "4"}}) == std::vector<int>{0, 1, 0, 1});
}

TEST_CASE("the network report is one line, and a slow network a warning") {
  NetworkReport report{.transport = "mpi", .ranks = 2, .hosts = 1, .megabytes_per_second = 3140, .round_trip_us = 17.6};
  CHECK(to_string(report) == "transport mpi (2 ranks, 1 host): 3.1 GB/s, 18 us");
  CHECK(slow_network_warning(report).empty());
  report.hosts = 2;
  report.megabytes_per_second = 11.5;
  CHECK(to_string(report) == "transport mpi (2 ranks, 2 hosts): 12 MB/s, 18 us");
  CHECK_THAT(slow_network_warning(report), Contains("11.5 MB/s each way, expected at least 100"));
  report.megabytes_per_second = 100;
  CHECK(slow_network_warning(report).empty());
  auto self = make_self();
  const auto alone = measure_network(*self);
  REQUIRE(alone);
  CHECK(to_string(*alone) == "transport self (1 rank, 1 host)");
  CHECK(slow_network_warning(*alone).empty());
}

}  // namespace lancet

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
