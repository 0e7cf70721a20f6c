// Commands that end, whatever they do.
#pragma once
#include <atomic>
#include <filesystem>
#include <string>
#include <vector>

namespace lancet::experiment {

using Command = std::vector<std::string>;

struct Limits {
  double seconds = 0;                      // 0: none
  const std::atomic<int>* stop = nullptr;  // not 0: end the command
  double grace_s = 5;                      // between SIGTERM, another one, and SIGKILL
};

struct Ended {
  enum class How { exited, not_started, late, stopped } how = How::exited;
  int code = 0;  // exit code, or 128 + the signal that ended it; not_started: errno
};

// Runs a command in a process group of its own, its output in a file. One that is late or to be stopped gets SIGTERM,
// after a grace SIGTERM again (scripts/mpirun.sh passes the first on as a request to save, the second as an end), then
// it and its descendants SIGKILL. A process that is itself killed meanwhile leaves no command behind: that gets SIGTERM.
Ended run_command(const Command& command, const std::filesystem::path& output, const Limits& limits);

}  // namespace lancet::experiment
