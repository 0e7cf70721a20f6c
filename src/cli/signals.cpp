#include "signals.h"

#include <unistd.h>

#include <csignal>
#include <string_view>

namespace lancet::cli {
namespace {

// Calls only what a handler may. SA_RESETHAND has put the default action back, which the raised signal then takes.
void stop(int signal) {
  const std::string_view line =
      signal == SIGINT ? "stopped by SIGINT before the end\n" : "stopped by SIGTERM before the end\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  std::raise(signal);
}

}  // namespace

void announce_signals() {
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction before = {}, action = {};
    if (::sigaction(signal, nullptr, &before) != 0 || before.sa_handler == SIG_IGN) continue;
    action.sa_handler = stop;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigaction(signal, &action, nullptr);
  }
}

}  // namespace lancet::cli
