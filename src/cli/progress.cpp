#include "progress.h"

#include <unistd.h>

#include <cstdio>

#include "lancet/base/clock.h"
#include "lancet/base/shown.h"

namespace lancet::cli {

std::string progress_detail(const std::string& done, double fraction, double seconds) {
  if (fraction < 0.01 || fraction >= 1) return done;  // too early for an estimate, or finished
  return done + ", " + duration(seconds * (1 - fraction) / fraction) + " left";
}

ProgressBar::ProgressBar(const char* what, double patience)
    : what_(what), patience_(patience), terminal_(isatty(STDERR_FILENO) != 0) {}

ProgressBar::~ProgressBar() {
  if (terminal_ && shown_ >= 0 && shown_ < 100) std::fputc('\n', stderr);
}

void ProgressBar::show(double fraction, const std::string& done) {
  const int percent = static_cast<int>(fraction * 100), step = terminal_ ? 1 : 10;
  if (percent / step == shown_) return;
  const double seconds = seconds_since(start_);
  if (shown_ < 0 && seconds < patience_) return;
  shown_ = percent / step;
  const std::string bar(static_cast<std::size_t>(percent / 4), '#');
  // The blanks overwrite the end of a longer previous line.
  std::fprintf(stderr, terminal_ ? "\r%s [%-25s] %3d%% %s    " : "%s [%-25s] %3d%% %s\n", what_, bar.c_str(), percent,
               progress_detail(done, fraction, seconds).c_str());
  if (terminal_ && percent == 100) std::fputc('\n', stderr);
  std::fflush(stderr);
}

}  // namespace lancet::cli
