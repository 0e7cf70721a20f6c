// Detects the end of the processes of the other ranks on this host. MPI over shared memory does not notice a rank that
// a signal has killed; without this the others would wait for it until the timeout.
#pragma once
#include <mpi.h>

#include <chrono>
#include <vector>

#include "lancet/base/result.h"

namespace lancet::comm::mpi {

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

}  // namespace lancet::comm::mpi
