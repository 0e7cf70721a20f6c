// Detects the end of the processes of the other ranks on this host. MPI over shared memory does not notice a rank that
// a signal has killed; without this the others would wait for it until the timeout.
#pragma once

#include <fmt/format.h>
#include <mpi.h>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "lancet/base/result.h"

namespace lancet::comm::mpi {

// What MPI says about one of its error codes.
inline std::string error_text(int mpi_code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(mpi_code, text, &length) != MPI_SUCCESS) return fmt::format("MPI error {}", mpi_code);
  return std::string(text, static_cast<std::size_t>(length));
}

class Neighbours {
 public:
  Neighbours() = default;  // watches no rank
  Neighbours(Neighbours&& other) noexcept : watched_(std::move(other.watched_)) { other.watched_.clear(); }
  ~Neighbours();

  // Collective over `world`, at start-up, before another thread calls MPI. Fails if a rank does not call it in time.
  // Ranks that cannot be watched (other hosts, other PID namespaces, kernels before 5.3) are left out.
  static Result<Neighbours> find(MPI_Comm world, std::chrono::milliseconds timeout);

  std::vector<int> ended() const;  // watched ranks whose processes have ended, for whatever reason, in ascending order
  // Sleeps until a watched rank has ended and returns true; false if the event `stop` came first or poll() failed.
  bool wait_for_an_end(int stop) const;
  bool empty() const { return watched_.empty(); }

 private:
  struct Watched {
    int rank;
    int fd;  // pidfd, readable once the process has ended; -1: it had ended before it could be opened
  };
  void watch(int rank, int pid);

  std::vector<Watched> watched_;
};

// Reports the ended neighbours on behalf of a progress thread that is stuck inside MPI. After a neighbour has ended,
// Open MPI's TCP transport reports the lost connection to the launcher and waits for an answer, which does not come
// while the launcher ends the job. The progress thread hangs in that call, so this thread must name the rank that
// streams wait for.

// Counts how often a thread enters and leaves MPI: odd while it is inside. One thread writes.
class Rounds {
 public:
  void enter() { count_.store(count_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  void leave() { enter(); }
  std::uint64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> count_ = 0;
};

class NeighbourWatch {
 public:
  // Calls on_stuck(ended) repeatedly while a neighbour has ended and the progress thread has stayed inside one round of
  // MPI calls for `patience` or longer. The arguments outlive the watch. Without neighbours there is no thread.
  NeighbourWatch(const Neighbours& neighbours, const Rounds& rounds, std::chrono::milliseconds patience,
                 std::function<void(const std::vector<int>&)> on_stuck);
  ~NeighbourWatch();
  NeighbourWatch(const NeighbourWatch&) = delete;

 private:
  void run() const;

  const Neighbours& neighbours_;
  const Rounds& rounds_;
  const std::chrono::milliseconds patience_;
  const std::function<void(const std::vector<int>&)> on_stuck_;
  int stop_ = -1;  // an eventfd; -1: it could not be made, and there is no thread
  std::thread thread_;
};

}  // namespace lancet::comm::mpi
