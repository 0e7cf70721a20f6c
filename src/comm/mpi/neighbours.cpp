// At start-up every rank gathers the process id of every rank, with a hash of its kernel's boot id and its PID
// namespace. A rank with an equal hash runs under the same kernel, where its process id is valid; its process is opened
// as a pidfd (Linux 5.3), which poll() reports as readable once the process has ended.
#include "neighbours.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "lancet/base/hash.h"

namespace lancet::comm::mpi {
namespace {

// Two ranks can use each other's process ids if they share one boot of one kernel and one PID namespace.
struct Process {
  std::uint64_t id_space = 0;  // hash of boot and PID namespace; 0: unknown
  std::int64_t pid = 0;
};

Process myself() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  struct stat pids {};
  if (boot.empty() || ::stat("/proc/self/ns/pid", &pids) != 0) return {};
  return {hash64(fmt::format("{} {} {}", boot, pids.st_dev, pids.st_ino)), ::getpid()};
}

// Returns every rank's Process, indexed by rank. Not by MPI_Allgather, which would wait for a missing rank forever.
Result<std::vector<Process>> gather(MPI_Comm world, Process mine, std::chrono::milliseconds timeout) {
  int size = 1;
  MPI_Comm_size(world, &size);
  // One entry per rank, and the send buffer at the end.
  auto all = std::make_unique<std::vector<Process>>(static_cast<std::size_t>(size) + 1, mine);
  MPI_Request request;
  int done = 0;
  int code =
      MPI_Iallgather(&all->back(), sizeof(Process), MPI_BYTE, all->data(), sizeof(Process), MPI_BYTE, world, &request);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (code == MPI_SUCCESS && (code = MPI_Test(&request, &done, MPI_STATUS_IGNORE)) == MPI_SUCCESS && !done) {
    if (std::chrono::steady_clock::now() >= deadline) {
      static_cast<void>(all.release());  // MPI may still write there; the process is about to end
      return communication_error(fmt::format("start-up: timed out after {:.3g} s: not all {} ranks came",
                                             std::chrono::duration<double>(timeout).count(), size));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  if (code != MPI_SUCCESS) return communication_error("start-up: " + error_text(code));
  all->pop_back();
  return *std::move(all);
}

}  // namespace

Neighbours::~Neighbours() {
  for (const Watched& watched : watched_)
    if (watched.fd >= 0) ::close(watched.fd);
}

Result<Neighbours> Neighbours::find(MPI_Comm world, std::chrono::milliseconds timeout) {
  int rank = 0;
  MPI_Comm_rank(world, &rank);
  const Process mine = myself();
  LANCET_ASSIGN(const std::vector<Process> all, gather(world, mine, timeout));
  Neighbours found;
  for (int peer = 0; peer < static_cast<int>(all.size()); ++peer) {
    const Process& process = all[static_cast<std::size_t>(peer)];
    if (peer != rank && mine.id_space != 0 && process.id_space == mine.id_space)
      found.watch(peer, static_cast<int>(process.pid));
  }
  return found;
}

void Neighbours::watch(int rank, int pid) {
  const auto fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));  // closed on exec
  if (fd >= 0 || errno == ESRCH) watched_.push_back({rank, fd});
}

std::vector<int> Neighbours::ended() const {
  std::vector<int> ranks;
  for (const Watched& watched : watched_) {
    pollfd entry{watched.fd, POLLIN, 0};
    if (watched.fd < 0 || (::poll(&entry, 1, 0) > 0 && (entry.revents & POLLIN) != 0)) ranks.push_back(watched.rank);
  }
  return ranks;
}

bool Neighbours::wait_for_an_end(int stop) const {
  std::vector<pollfd> entries{{stop, POLLIN, 0}};
  for (const Watched& watched : watched_) {
    if (watched.fd < 0) return true;
    entries.push_back({watched.fd, POLLIN, 0});
  }
  int ready = 0;
  do ready = ::poll(entries.data(), entries.size(), -1);
  while (ready < 0 && errno == EINTR);
  return ready > 0 && entries.front().revents == 0;
}

// The thread sleeps in poll() until a neighbour has ended. From then on it reads the progress thread's round counter
// every 50 ms: a count that is odd and has not changed for `patience` means that the thread is stuck inside MPI.
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
