// The log: plain lines on stderr, so that stdout holds only a command's output. Warnings and errors begin with
// "warning: " and "error: ", and are one line each: control characters in users' paths become '?'. Rank 0 logs from
// level `info` on; other ranks log warnings and errors, with their rank in front.
#pragma once
#include <spdlog/spdlog.h>

namespace lancet::log {

using spdlog::error;
using spdlog::info;
using spdlog::warn;

// Call once per process, before the first line. If ranks is 1, lines do not name the rank.
void set_up(int rank, int ranks);
// From now on, lines of level `info` go to stdout, since they are the command's output.
void info_to_stdout();

}  // namespace lancet::log
