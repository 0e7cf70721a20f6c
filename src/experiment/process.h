// Processes that are found now and ended later, when their numbers may be others'.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace lancet::experiment {

struct Process {
  pid_t id = 0;
  std::uint64_t start = 0;  // in the system's ticks since its boot; 0: there is no such process
  friend bool operator==(const Process&, const Process&) = default;
};

Process process_of(pid_t id);

// A process and all that descend from it, ancestors first.
std::vector<Process> family_of(pid_t root);

// SIGKILL, unless it has ended and its number is another's.
void kill_if_same(const Process& process);

}  // namespace lancet::experiment
