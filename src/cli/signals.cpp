// Of the two ways to handle signals, the one that a command installs last holds: main() calls announce_signals() on
// rank 0 for every command, training catch_stop_signals(). Handlers use only write(), sigaction(), raise() and
// lock-free atomics. Signals that were ignored at the start (nohup) stay ignored.
#include "signals.h"

#include <unistd.h>

#include <csignal>
#include <cstring>
#include <initializer_list>
#include <string_view>

namespace lancet::cli {
namespace {

void say(std::string_view text) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

void say_name(int signal) {
  say("SIG");
  say(::sigabbrev_np(signal));
}

// SA_RESETHAND has restored the default action, so that raise() ends the process.
void stop(int signal) {
  say("stopped by ");
  say_name(signal);
  say(" before the end\n");
  std::raise(signal);
}

void handle(std::initializer_list<int> signals, void (*handler)(int), int flags) {
  for (const int signal : signals) {
    struct sigaction before = {}, action = {};
    if (::sigaction(signal, nullptr, &before) != 0 || before.sa_handler == SIG_IGN) continue;
    action.sa_handler = handler;
    action.sa_flags = flags;
    ::sigaction(signal, &action, nullptr);
  }
}

std::atomic<int> requested{0};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "handlers read and write them");
std::atomic<bool> speaks{false};

void request(int signal) {
  if (requested.exchange(signal) != 0) return;
  handle({SIGINT, SIGTERM}, SIG_DFL, 0);
  if (!speaks) return;
  say_name(signal);
  say(": saving and stopping after this step; another SIGTERM or SIGINT stops at once\n");
}

}  // namespace

void announce_signals() {
  handle({SIGINT, SIGTERM, SIGUSR1, SIGHUP}, stop, static_cast<int>(SA_RESETHAND));
  handle({SIGXFSZ}, SIG_IGN, 0);  // so that write() returns an error when a file reaches the size limit
}

const std::atomic<int>& catch_stop_signals(bool is_rank0) {
  speaks = is_rank0;
  handle({SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGPIPE}, request, SA_RESTART);
  return requested;
}

void report_no_signals() { speaks = false; }

}  // namespace lancet::cli
