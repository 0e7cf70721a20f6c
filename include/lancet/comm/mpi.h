// The MPI transport. One progress thread a process makes every MPI call after start-up; callers sleep until it
// reports back, and it sleeps between polls, so that waiting costs no core.
#pragma once
#include <chrono>
#include <memory>
#include <string>

#include "lancet/comm/communicator.h"
#include "lancet/comm/launch.h"

namespace lancet::comm {

// Owns MPI between start and end of the process. Exactly one may exist, and a process may start one only once.
// Communicators may outlive it, but their calls fail then. MPI is finalised by the destructor, which waits for the
// other ranks to do the same; after an error or an abort it is not, so that the launcher ends the other ranks.
class MpiSession {
 public:
  // On the main thread. Fails when MPI is running already or gives less than MPI_THREAD_SERIALIZED. Where the other
  // ranks do not start within the timeout, it says so and ends the process with code 5: MPI itself would wait for ever.
  static Result<std::unique_ptr<MpiSession>> start(std::chrono::milliseconds timeout = std::chrono::seconds(300));
  virtual ~MpiSession() = default;
  // The communicator over all ranks; further calls return the same stream (for more streams, duplicate it).
  virtual std::unique_ptr<Communicator> world() = 0;
  // Ends the whole job with this exit code (1 to 255), on every rank; does not return. Any thread. (Open MPI 4.1's
  // mpirun once in a hundred times reports 1 instead of the code.)
  [[noreturn]] virtual void abort_job(int exit_code) = 0;
};

}  // namespace lancet::comm
