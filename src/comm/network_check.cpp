// Latency is the median of round trips around the ring of ranks. For bandwidth, a pilot all-to-all measures the network
// roughly; the repetitions then send as many bytes as their time budget allows. On a network so slow that the pilot
// alone exceeds a repetition's share of the budget, the pilot is the measurement. Every figure is the slowest rank's,
// so all ranks take the same decisions and report the same values.
#include "lancet/comm/network_check.h"
#include "lancet/base/clock.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>
#include <vector>

#include "lancet/base/files.h"
#include "lancet/base/hash.h"
#include "lancet/comm/collect.h"

namespace lancet::comm {
namespace {

constexpr double budget_seconds = 0.06;          // for all bandwidth repetitions together
constexpr std::size_t pilot_bytes = 256 * 1024;  // sent by each rank
constexpr std::size_t most_bytes = 4 << 20;
constexpr int repetitions = 5, round_trips = 15;
constexpr double least_megabytes_per_second = 100;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

class Probe {
 public:
  explicit Probe(Communicator& communicator) : communicator_(communicator) {}

  // Seconds of an all-to-all on this rank; each rank sends about `bytes` in total.
  Result<double> all_to_all(std::size_t bytes) {
    if (!all_to_all_ || bytes != bytes_) all_to_all_.emplace(communicator_, bytes_ = bytes);
    LANCET_TRY(communicator_.barrier());
    const double start = now();
    LANCET_TRY((*all_to_all_)(communicator_));
    return now() - start;
  }

  // Seconds of a round trip: rank + 1 returns this rank's message, while this rank returns the message of rank - 1.
  Result<double> round_trip() {
    const int size = communicator_.size(), next = (communicator_.rank() + 1) % size,
              last = (communicator_.rank() + size - 1) % size;
    std::byte mine[8] = {}, theirs[8] = {};
    const Segment there[] = {{next, mine, 8}}, from_last[] = {{last, theirs, 8}};
    const Segment back[] = {{last, theirs, 8}}, from_next[] = {{next, mine, 8}};
    const double start = now();
    LANCET_TRY(communicator_.send_receive(there, from_last));
    LANCET_TRY(communicator_.send_receive(back, from_next));
    return now() - start;
  }

 private:
  Communicator& communicator_;
  std::optional<AllToAll> all_to_all_;
  std::size_t bytes_ = 0;
};

Result<int> count_hosts(Communicator& communicator) {
  LANCET_ASSIGN(const auto hashes, collect(communicator, hash64(host_name())));
  return static_cast<int>(std::set(hashes.begin(), hashes.end()).size());
}

}  // namespace

Result<NetworkReport> measure_network(Communicator& communicator) {
  NetworkReport report;
  report.transport = communicator.transport();
  report.ranks = communicator.size();
  if (report.ranks == 1) return report;
  LANCET_ASSIGN(report.hosts, count_hosts(communicator));

  Probe probe(communicator);
  std::vector<double> times;
  for (int i = 0; i < round_trips + 1; ++i) {
    LANCET_ASSIGN(const double t, probe.round_trip());
    if (i > 0) times.push_back(t);  // the first one opens connections
  }
  LANCET_ASSIGN(const double round_trip, largest(communicator, median(times)));
  report.round_trip_us = round_trip * 1e6;

  // The pilot's time determines the bytes that the budget allows; it is the slowest rank's, so all ranks agree.
  LANCET_ASSIGN(const double pilot, probe.all_to_all(pilot_bytes));
  LANCET_ASSIGN(const double slowest_pilot, largest(communicator, pilot));
  const double affordable = static_cast<double>(pilot_bytes) * budget_seconds / repetitions / slowest_pilot;
  const bool slow = affordable < static_cast<double>(pilot_bytes);
  const std::size_t bytes = slow ? pilot_bytes : std::min(most_bytes, static_cast<std::size_t>(affordable));
  double seconds = slowest_pilot;
  if (!slow) {
    times.clear();
    for (int i = 0; i < repetitions; ++i) {
      LANCET_ASSIGN(const double t, probe.all_to_all(bytes));
      times.push_back(t);
    }
    LANCET_ASSIGN(seconds, largest(communicator, median(times)));
  }
  report.megabytes_per_second = static_cast<double>(bytes) / seconds / 1e6;
  return report;
}

std::string to_string(const NetworkReport& r) {
  std::string head = fmt::format("transport {} ({} rank{}, {} host{})", r.transport, r.ranks, r.ranks == 1 ? "" : "s",
                                 r.hosts, r.hosts == 1 ? "" : "s");
  if (r.ranks == 1) return head;
  const std::string rate = r.megabytes_per_second >= 1000 ? fmt::format("{:.1f} GB/s", r.megabytes_per_second / 1000)
                                                          : fmt::format("{:.0f} MB/s", r.megabytes_per_second);
  return fmt::format("{}: {}, {:.0f} us", head, rate, r.round_trip_us);
}

std::string slow_network_warning(const NetworkReport& r) {
  if (r.ranks == 1 || r.megabytes_per_second >= least_megabytes_per_second) return {};
  return fmt::format(
      "an all-to-all runs at {:.1f} MB/s each way, expected at least {:.0f}: check the network interface that {} uses",
      r.megabytes_per_second, least_megabytes_per_second, r.transport);
}

}  // namespace lancet::comm
