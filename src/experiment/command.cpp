// Runs one command to its end, which comes even if the command ignores signals or has children.
//
// A pipe that exec closes reports an error between fork and exec. The parent polls with waitpid until the command
// exits, exceeds its time limit or is to be stopped. A descendant is identified by its process id and its start time,
// so that a reused id is never killed. PR_SET_PDEATHSIG ends the command if this process dies.
#include "command.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <thread>

#include "lancet/base/clock.h"
#include "process.h"

namespace lancet::experiment {
namespace {

using Clock = std::chrono::steady_clock;

// Runs in the child between fork and exec, where only async-signal-safe functions may be called. An error is written to
// the descriptor `report`.
[[noreturn]] void become(char* const* arguments, const char* output, pid_t parent, int report) {
  ::setpgid(0, 0);  // the terminal's Ctrl-C is for the sweep alone
  const int in = ::open("/dev/null", O_RDONLY), out = ::open(output, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const bool ready = in >= 0 && out >= 0 && ::dup2(in, 0) >= 0 && ::dup2(out, 1) >= 0 && ::dup2(out, 2) >= 0 &&
                     ::prctl(PR_SET_PDEATHSIG, SIGTERM) == 0;  // if the sweep dies, the command ends
  if (ready && ::getppid() == parent) ::execvp(arguments[0], arguments);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(report, &error, sizeof error);
  ::_exit(127);
}

// Returns 0, or the errno of a command that could not be started.
int spawn(const Command& command, const std::filesystem::path& output, pid_t& pid) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  int report[2];  // closed by exec
  if (::pipe2(report, O_CLOEXEC) != 0) return errno;
  const pid_t parent = ::getpid();
  pid = ::fork();
  if (pid == 0) become(arguments.data(), output.c_str(), parent, report[1]);
  int error = pid < 0 ? errno : 0;
  ::close(report[1]);
  if (pid > 0 && ::read(report[0], &error, sizeof error) == ssize_t(sizeof error)) ::waitpid(pid, nullptr, 0);
  ::close(report[0]);
  return error;
}

class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}

  // Waits for the end, at most `seconds` (0: without limit) and only while `stop` is 0. Returns true if it ended.
  bool ends(double seconds, const std::atomic<int>* stop) {
    const auto start = Clock::now();
    for (auto pause = std::chrono::milliseconds(1);; pause = std::min(2 * pause, std::chrono::milliseconds(100))) {
      if (over()) return true;
      if ((stop && *stop != 0) || (seconds > 0 && seconds_since(start) >= seconds)) return false;
      std::this_thread::sleep_for(pause);
    }
  }

  void end(double grace_s) {
    std::vector<Process> family = family_of(pid_);
    for (int request = 0; request < 2; ++request) {
      ::kill(pid_, SIGTERM);
      if (ends(grace_s, nullptr)) break;
    }
    if (!over())
      for (const Process& late : family_of(pid_))
        if (std::find(family.begin(), family.end(), late) == family.end()) family.push_back(late);
    if (!over()) ::kill(pid_, SIGKILL);  // its id cannot be reused before waitpid
    for (const Process& process : family)
      if (process.id != pid_) kill_if_same(process);
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

  static constexpr int lost = 1 << 8;  // exit code 1, for a status that another waitpid consumed
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
