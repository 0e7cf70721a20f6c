#include <catch2/catch.hpp>

#include <map>
#include <string>

#include "comm/contract.h"
#include "lancet/comm/communicator.h"
#include "lancet/comm/mpi.h"
#include "lancet/comm/network_check.h"

using namespace lancet;
using namespace lancet::comm;
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
