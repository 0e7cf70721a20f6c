// Shows a command's progress on standard error: one line that is rewritten in place on a terminal, else a line at every
// tenth.
#pragma once
#include <chrono>
#include <string>

namespace lancet::cli {

// Returns for example "12.3 MB, 40s left". The rest is estimated from the mean speed; seconds: since the beginning.
std::string progress_detail(const std::string& done, double fraction, double seconds);

class ProgressBar {
 public:
  // patience: seconds before the bar appears; a shorter task shows none.
  explicit ProgressBar(const char* what, double patience = 0);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  void show(double fraction, const std::string& done);

 private:
  const char* const what_;
  const double patience_;
  const bool terminal_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  int shown_ = -1;
};

}  // namespace lancet::cli
