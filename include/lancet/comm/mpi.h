// The start of a process among its ranks, by the launcher's environment and by MPI. A build without MPI uses the former
// to refuse a launch of several ranks.
//
// The MPI transport: one progress thread per process makes every MPI call after start-up. Callers sleep until it has
// finished their operation, and it sleeps between polls, so that waiting does not occupy a core.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "lancet/comm/communicator.h"

namespace lancet::comm {

struct Launch {
  int rank = 0, size = 1, local_rank = 0, local_size = 1;
};
// Read from the environment before MPI is started (Open MPI, MPICH/PMI and Slurm variables). Without a launcher: one
// rank. Slurm's variables count only where srun started this process, not in a batch script that runs one.
Launch detect_launch();
// The same from any table of variables; `get` returns null for a variable that is not set.
Launch detect_launch(const std::function<const char*(const char*)>& get);

// Owns MPI from its start to the end of the process. A process may start one session, once.
// Communicators may outlive it, but their calls fail then. The destructor finalises MPI and waits for the other ranks
// to do the same; after an error or an abort it does not finalise MPI, so that the launcher ends the other ranks. If
// MPI does not return after an error, it logs one and exits with code 5.
class MpiSession {
 public:
  // On the main thread. Fails if MPI is running already or provides less than MPI_THREAD_SERIALIZED. If the other ranks
  // do not start within `launch`, it logs an error and exits with code 5 (MPI_Init would block forever).
  // Communication error: the ranks' first messages took longer than first_message.
  static Result<std::unique_ptr<MpiSession>> start(std::chrono::milliseconds launch = std::chrono::seconds(300),
                                                   std::chrono::milliseconds first_message = std::chrono::seconds(300));
  virtual ~MpiSession() = default;
  // The communicator over all ranks. Further calls return one of the same stream (duplicate it for more streams).
  virtual std::unique_ptr<Communicator> world() = 0;
  // Ends the whole job with this exit code (1 to 255), on every rank; does not return. Any thread. (Open
  // MPI 4.1's mpirun reports 1 instead of the code in about one of a hundred runs.)
  [[noreturn]] virtual void abort_job(int exit_code) = 0;
};

// The rounds of an all-reduce over MPI, which bound how long another stream's messages wait for it.

// Floats that a round sums, on all ranks together. Another stream's messages wait for up to three rounds, since they go
// to the same peers over the same connections: at 1.25 GB/s, among 4 ranks, an all-to-all of 2 ms took 4 ms beside an
// all-reduce in rounds of 1 MB (11 ms in rounds of 4 MB). With 2 ranks and no limited network, 4 MB take 1.1 ms either
// way, but a third longer or more in rounds of 512 KB, since waking a thread takes as long as a round.
inline constexpr std::size_t round_floats = 256 * 1024;
// Among many ranks a message is no shorter than this (64 KB), so that its own cost stays small.
inline constexpr std::size_t shortest_piece = 16 * 1024;

// The floats that one rank sums in a round.
constexpr std::size_t floats_of_rank(std::size_t ranks) { return std::max(round_floats / ranks, shortest_piece); }

}  // namespace lancet::comm
