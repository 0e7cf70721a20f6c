// The ranks of this host, watched for their end. A rank that a signal ends sends nothing any more, and over shared
// memory MPI notices nothing: without this the others would wait for as long as a hang may take.
#pragma once
#include <mpi.h>

#include <chrono>
#include <vector>

#include "lancet/base/result.h"

namespace lancet::comm::mpi {

class Neighbours {
 public:
  Neighbours() = default;  // none
  Neighbours(Neighbours&& other) noexcept : watched_(std::move(other.watched_)) { other.watched_.clear(); }
  ~Neighbours();

  // Collective over `world`, at start-up, before another thread calls MPI. Fails where a rank does not come in time.
  // Ranks that cannot be watched (other hosts, other PID namespaces, kernels before 5.3) are left out.
  static Result<Neighbours> find(MPI_Comm world, std::chrono::milliseconds timeout);

  // Watched ranks whose processes have ended, in order, however they ended.
  std::vector<int> ended() const;
  // Sleeps until one has ended: true. False: the event `stop` came first, or nothing can be waited for.
  bool wait_for_an_end(int stop) const;
  bool empty() const { return watched_.empty(); }

 private:
  struct Watched {
    int rank;
    int fd;  // of the process: readable once it has ended; -1: it had ended before it could be opened
  };
  void watch(int rank, int pid);

  std::vector<Watched> watched_;
};

}  // namespace lancet::comm::mpi
