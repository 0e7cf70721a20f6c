// Signal handling: reports signals, turns them into requests to stop, or ends the process.
#pragma once
#include <atomic>

namespace lancet::cli {

// Makes SIGINT, SIGTERM, SIGUSR1 and SIGHUP, unless they are ignored, print a line to stderr before they end the
// process by their default action: the shell sees 128 + the signal's number.
void announce_signals();

// Makes the first of SIGINT, SIGTERM, SIGUSR1, SIGHUP and SIGPIPE (stdout was closed), unless ignored, only set the
// returned number; another SIGINT or SIGTERM ends the process. is_rank0: the signal is reported on stderr.
const std::atomic<int>& catch_stop_signals(bool is_rank0);
// Stops the reports: this process has failed and is about to end, and its launcher may send signals.
void report_no_signals();

}  // namespace lancet::cli
