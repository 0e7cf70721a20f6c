// The MPI transport. One progress thread a process makes every MPI call after start-up; callers sleep until it
// reports back, and it sleeps between polls, so that waiting costs no core.
#pragma once
#include <memory>
#include <string>

#include "lancet/comm/communicator.h"

namespace lancet::comm {

// Ranks as the launcher declares them, read before MPI is started (Open MPI, MPICH and Slurm variables).
struct Launch {
  int rank = 0, size = 1, local_rank = 0, local_size = 1;
};
Launch detect_launch();

// Owns MPI between start and end of the process. Exactly one may exist.
class MpiSession {
 public:
  static Result<std::unique_ptr<MpiSession>> start();
  virtual ~MpiSession() = default;
  virtual std::unique_ptr<Communicator> world() = 0;
  // Ends the whole job with this exit code, on every rank; does not return.
  [[noreturn]] virtual void abort_job(int exit_code) = 0;
};

}  // namespace lancet::comm
