// How far a command is, on standard error: a line that is rewritten in place on a terminal, else one at every tenth.
#pragma once
#include <chrono>
#include <string>

namespace lancet::cli {

// "12.3 MB, 40s left": what is done, and what the rest takes at the pace so far (seconds: since the beginning).
std::string progress_detail(const std::string& done, double fraction, double seconds);

class ProgressBar {
 public:
  // patience: seconds of quiet, so that what is over sooner says nothing.
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
