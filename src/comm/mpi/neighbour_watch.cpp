// The thread sleeps in poll() until a neighbour has ended. From then on it reads the progress thread's round counter
// every 50 ms: a count that is odd and has not changed for `patience` means that the thread is stuck inside MPI.
#include "neighbour_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

namespace lancet::comm::mpi {
namespace {

constexpr std::chrono::milliseconds watch_interval{50};

bool signalled_within(int event, std::chrono::milliseconds time) {
  pollfd entry{event, POLLIN, 0};
  return ::poll(&entry, 1, static_cast<int>(time.count())) > 0;
}

}  // namespace

NeighbourWatch::NeighbourWatch(const Neighbours& neighbours, const Rounds& rounds, std::chrono::milliseconds patience,
                               std::function<void(const std::vector<int>&)> on_stuck)
    : neighbours_(neighbours), rounds_(rounds), patience_(patience), on_stuck_(std::move(on_stuck)) {
  if (neighbours.empty()) return;
  stop_ = ::eventfd(0, EFD_CLOEXEC);
  if (stop_ >= 0) thread_ = std::thread([this] { run(); });
}

NeighbourWatch::~NeighbourWatch() {
  if (!thread_.joinable()) return;
  ::eventfd_write(stop_, 1);
  thread_.join();
  ::close(stop_);
}

void NeighbourWatch::run() const {
  using Clock = std::chrono::steady_clock;
  if (!neighbours_.wait_for_an_end(stop_)) return;
  std::uint64_t round = rounds_.count();
  Clock::time_point since = Clock::now();
  while (!signalled_within(stop_, watch_interval)) {
    const auto now = Clock::now();
    if (const std::uint64_t seen = std::exchange(round, rounds_.count()); seen != round) since = now;
    if (round % 2 == 1 && now - since >= patience_) on_stuck_(neighbours_.ended());
  }
}

}  // namespace lancet::comm::mpi
