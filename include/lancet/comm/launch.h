// Reads rank and size from the launcher's environment. Part of every build: a build without MPI uses it to refuse a
// launch of several ranks.
#pragma once
#include <functional>
#include <string>

namespace lancet::comm {

struct Launch {
  int rank = 0, size = 1, local_rank = 0, local_size = 1;
};
// Read from the environment before MPI is started (Open MPI, MPICH/PMI and Slurm variables). Without a launcher: one
// rank. Slurm's variables count only where srun started this process, not in a batch script that runs one.
Launch detect_launch();
// The same from any table of variables; `get` returns null for a variable that is not set.
Launch detect_launch(const std::function<const char*(const char*)>& get);

}  // namespace lancet::comm
