// A run that is told to stop says so.
#pragma once
#include <atomic>

namespace lancet::cli {

// From now on SIGINT, SIGTERM, SIGUSR1 and SIGHUP, unless they are ignored, leave a line on stderr before they end this
// process as they always do: the shell sees 128 + the signal's number.
void announce_signals();

// From now on the first of SIGINT, SIGTERM, SIGUSR1, SIGHUP and SIGPIPE (nobody reads what it says), unless ignored,
// only sets the number that is returned; one more SIGINT or SIGTERM ends the process. is_rank0: says so on stderr.
const std::atomic<int>& catch_stop_signals(bool is_rank0);
// Says nothing of them any more: this process has failed and is about to end, and its launcher may send them.
void ignore_stop_signals();

// From now on SIGINT, SIGTERM and SIGHUP, unless ignored, only set the number that is returned, the first of them, and
// say `note` on stderr once. For what must be taken down before the end, and is so within a bound.
const std::atomic<int>& note_stop_signals(const char* note);
// Whether, after the first of them, one more ends the process at once, with ExitCode::saved: where nothing is to be
// taken down, and what runs may take long. At first it does not.
void next_stop_ends(bool ends);

}  // namespace lancet::cli
