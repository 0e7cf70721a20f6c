// Start-up check of bandwidth and latency between the ranks; warns about a misconfigured network.
#pragma once
#include <string>

#include "lancet/comm/communicator.h"

namespace lancet::comm {

struct NetworkReport {
  std::string transport;
  int ranks = 1, hosts = 1;
  // Rate at which a rank sends, and receives at the same time, in an all-to-all: the slowest rank, median over the
  // repetitions. 1 MB = 10^6 bytes. 0 with one rank.
  double megabytes_per_second = 0;
  // Round trip between neighbours (rank r sends to r + 1, which answers): the slowest rank, median. 0 with one rank.
  double round_trip_us = 0;
};

// Collective; the same report on all ranks. Takes about 0.1 s, less than 0.3 s on any network over 10 MB/s.
Result<NetworkReport> measure_network(Communicator& communicator);

std::string to_string(const NetworkReport& report);  // "transport mpi (2 ranks, 1 host): 3.1 GB/s, 18 us"

// Returns a warning if the network is slower than a tenth of a 10 Gb/s network, since something is wrong then (wrong
// interface, no shared memory); empty if it is not, or with one rank.
std::string slow_network_warning(const NetworkReport& report);

}  // namespace lancet::comm
