// Identifies processes by id and start time, so that one can be killed later even if its id was reused in between.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace lancet::experiment {

struct Process {
  pid_t id = 0;
  std::uint64_t start = 0;  // in clock ticks since the system's boot; 0: there is no such process
  friend bool operator==(const Process&, const Process&) = default;
};

Process process_of(pid_t id);

// Returns a process and all its descendants, ancestors first.
std::vector<Process> family_of(pid_t root);

// Sends SIGKILL, unless the process has ended.
void kill_if_same(const Process& process);

}  // namespace lancet::experiment
