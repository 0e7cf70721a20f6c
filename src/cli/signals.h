// A run that is told to stop says so.
#pragma once

namespace lancet::cli {

// From now on SIGINT and SIGTERM, unless they are ignored, leave a line on stderr before they end this process as they
// always do: the shell sees 128 + the signal's number.
void announce_signals();

}  // namespace lancet::cli
