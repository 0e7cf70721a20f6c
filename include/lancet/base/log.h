// The log: plain lines on stderr, so that stdout holds only a command's output. Warnings and errors begin with
// "warning: " and "error: ", and are one line each: control characters in users' paths become '?'. Rank 0 logs from
// level `info` on; other ranks log warnings and errors, with their rank in front.
#pragma once
#include <fmt/core.h>

namespace lancet::log {

enum class Level { info, warn, error };
// Not a template, so that the formatting code is compiled once.
void write(Level level, fmt::string_view format, fmt::format_args arguments);

template <class... Arguments>
void info(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  write(Level::info, format, fmt::make_format_args(arguments...));
}
template <class... Arguments>
void warn(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  write(Level::warn, format, fmt::make_format_args(arguments...));
}
template <class... Arguments>
void error(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  write(Level::error, format, fmt::make_format_args(arguments...));
}

// Call once per process, before the first line. If ranks is 1, lines do not name the rank.
void set_up(int rank, int ranks);
// From now on, lines of level `info` go to stdout, since they are the command's output.
void info_to_stdout();

}  // namespace lancet::log
