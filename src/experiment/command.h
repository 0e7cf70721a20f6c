// Runs a command as a child process with a time limit.
#pragma once
#include <atomic>
#include <filesystem>
#include <string>
#include <vector>

namespace lancet::experiment {

using Command = std::vector<std::string>;

struct Limits {
  double seconds = 0;                      // time limit; 0: none
  const std::atomic<int>* stop = nullptr;  // the command is ended once this is not 0; null: never
  double grace_s = 5;                      // from SIGTERM to the second SIGTERM, and from there to SIGKILL
};

struct Ended {
  enum class How { exited, not_started, late, stopped } how = How::exited;
  int code = 0;  // exit code, or 128 + the signal that ended it; not_started: errno
};

// Runs a command in a process group of its own and writes its output to a file. A command that is late or to be stopped
// gets SIGTERM, after grace_s a second SIGTERM (scripts/mpirun.sh takes the first as a request to save, the second as
// an order to end), and after grace_s more it and its descendants get SIGKILL. If the calling process is killed
// meanwhile, the command gets SIGTERM.
Ended run_command(const Command& command, const std::filesystem::path& output, const Limits& limits);

}  // namespace lancet::experiment
