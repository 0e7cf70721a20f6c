#include "command.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <optional>
#include <thread>

#include "lancet/base/clock.h"

extern char** environ;

namespace lancet::experiment {
namespace {

using Clock = std::chrono::steady_clock;

int spawn(const Command& command, const std::filesystem::path& output, pid_t& pid) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);  // the terminal's Ctrl-C is for the sweep alone
  posix_spawnattr_setpgroup(&attributes, 0);
  const int error = posix_spawnp(&pid, arguments[0], &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

// The parent in /proc/PID/stat: "PID (name) state PARENT ...", where the name may hold anything.
pid_t parent_of(const std::filesystem::path& process) {
  std::ifstream in(process / "stat");
  std::string text;
  std::getline(in, text);
  const std::size_t name_end = text.rfind(')');
  char state = 0;
  int parent = 0;
  if (name_end == std::string::npos || std::sscanf(text.c_str() + name_end + 1, " %c %d", &state, &parent) != 2)
    return 0;
  return parent;
}

// A process and all that descend from it, ancestors first.
std::vector<pid_t> family_of(pid_t root) {
  std::multimap<pid_t, pid_t> children;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c); }))
      children.emplace(parent_of(entry.path()), std::stoi(name));
  }
  std::vector<pid_t> family{root};
  for (std::size_t i = 0; i < family.size(); ++i)
    for (auto [at, end] = children.equal_range(family[i]); at != end; ++at) family.push_back(at->second);
  return family;
}

class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}

  // Waits for the end, but not longer than so many seconds (0: without limit), nor once `stop` is set.
  bool ends(double seconds, const std::atomic<int>* stop) {
    const auto start = Clock::now();
    for (auto pause = std::chrono::milliseconds(1);; pause = std::min(2 * pause, std::chrono::milliseconds(100))) {
      if (over()) return true;
      if ((stop && *stop != 0) || (seconds > 0 && seconds_since(start) >= seconds)) return false;
      std::this_thread::sleep_for(pause);
    }
  }

  void end(double grace_s) {
    std::vector<pid_t> family = family_of(pid_);
    for (int request = 0; request < 2; ++request) {
      ::kill(pid_, SIGTERM);
      if (ends(grace_s, nullptr)) break;
    }
    if (!over())
      for (const pid_t pid : family_of(pid_))
        if (std::find(family.begin(), family.end(), pid) == family.end()) family.push_back(pid);
    for (const pid_t pid : family)
      if (pid != pid_ || !over()) ::kill(pid, SIGKILL);
    ends(0, nullptr);
  }

  int code() const { return !status_ ? -1 : WIFEXITED(*status_) ? WEXITSTATUS(*status_) : 128 + WTERMSIG(*status_); }

 private:
  bool over() {
    int status = 0;
    if (status_) return true;
    const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
    if (ended == pid_) status_ = status;
    if (ended < 0 && errno == ECHILD) status_ = lost;
    return status_.has_value();
  }

  static constexpr int lost = 1 << 8;  // as of exit code 1: someone else took it
  const pid_t pid_;
  std::optional<int> status_;
};

}  // namespace

Ended run_command(const Command& command, const std::filesystem::path& output, const Limits& limits) {
  pid_t pid = 0;
  if (const int error = spawn(command, output, pid); error != 0) return {Ended::How::not_started, error};
  Child child(pid);
  if (child.ends(limits.seconds, limits.stop)) return {Ended::How::exited, child.code()};
  child.end(limits.grace_s);
  return {limits.stop && *limits.stop != 0 ? Ended::How::stopped : Ended::How::late, child.code()};
}

}  // namespace lancet::experiment
