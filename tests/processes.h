// Finds and signals the processes of ranks while they run.
#pragma once
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "program.h"

namespace lancet::test {

using Seconds = std::chrono::duration<double>;

// The readable text of a /proc file; empty if its process ends meanwhile.
inline std::string slurp(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// The processes of this program with this word on their command lines, by rank.
inline std::vector<pid_t> ranks_with(const std::string& word) {
  std::vector<std::pair<int, pid_t>> found;
  std::error_code gone;  // processes may end while we look
  for (std::filesystem::directory_iterator at("/proc", gone), end; !gone && at != end; at.increment(gone)) {
    const std::string pid = at->path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string line = slurp(at->path() / "cmdline");
    if (!line.starts_with(std::string(LANCET_BINARY) + '\0') || line.find('\0' + word + '\0') == std::string::npos)
      continue;
    constexpr std::string_view variable = "OMPI_COMM_WORLD_RANK=";
    const std::string environment = slurp(at->path() / "environ");
    const auto rank = environment.find(variable);
    found.emplace_back(rank == std::string::npos ? 0 : std::atoi(environment.c_str() + rank + variable.size()),
                       std::atoi(pid.c_str()));
  }
  std::sort(found.begin(), found.end());
  std::vector<pid_t> pids;
  for (const auto& [rank, pid] : found) pids.push_back(pid);
  return pids;
}

// False after a minute.
inline bool wait_until(const std::function<bool()>& holds) {
  const auto begin = std::chrono::steady_clock::now();
  while (!holds()) {
    if (std::chrono::steady_clock::now() - begin > Seconds(60)) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

// Processor time used; 0 if the process is gone.
inline double seconds_used(pid_t pid) {
  const std::string line = slurp("/proc/" + std::to_string(pid) + "/stat");
  std::istringstream fields(line.substr(std::min(line.rfind(')') + 1, line.size())));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / double(sysconf(_SC_CLK_TCK));
}

// Waits until each process has computed for this long from now on, however busy the machine is; false after a minute.
inline bool wait_until_worked(const std::vector<pid_t>& pids, double seconds) {
  std::vector<double> before;
  for (const pid_t pid : pids) before.push_back(seconds_used(pid));
  return wait_until([&] {
    for (std::size_t i = 0; i < pids.size(); ++i)
      if (seconds_used(pids[i]) < before[i] + seconds) return false;
    return true;
  });
}

// A command in the background, in a shell of its own.
class Job {
 public:
  explicit Job(std::string command)
      : thread_([this, command = std::move(command)] {
          outcome_ = shell(command);
          ended_ = std::chrono::steady_clock::now();
        }) {}
  // Waits for its end. took: seconds since `start`.
  Outcome end(std::chrono::steady_clock::time_point start, double& took) {
    thread_.join();
    took = Seconds(ended_ - start).count();
    return outcome_;
  }

 private:
  Outcome outcome_;
  std::chrono::steady_clock::time_point ended_;
  std::jthread thread_;  // last: it uses the above
};

// scripts/mpirun.sh; the documented exit codes of runs with several ranks hold for it.
inline std::string ranks_of(int ranks, const std::string& arguments) {
  return LANCET_SOURCE_DIR "/scripts/mpirun.sh " + std::to_string(ranks) + " " LANCET_BINARY " " + arguments;
}

}  // namespace lancet::test
