// The log: plain lines on stderr, so that stdout stays for what a command is asked to print. "warning: " and "error: "
// stand before those. Rank 0 logs at `info`; other ranks log warnings and errors, with their rank in front.
#pragma once
#include <spdlog/spdlog.h>

namespace lancet::log {

using spdlog::error;
using spdlog::info;
using spdlog::warn;

// Call once a process, before the first line. ranks: 1 leaves the rank out of the line.
void set_up(int rank, int ranks);

}  // namespace lancet::log
