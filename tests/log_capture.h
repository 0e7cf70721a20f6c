// Captures the log during its life.
#pragma once
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <sstream>
#include <string>

namespace lancet::test {

class LogCapture {
 public:
  LogCapture() {
    sink_->set_pattern("%l: %v");
    spdlog::default_logger()->sinks().push_back(sink_);
  }
  ~LogCapture() { spdlog::default_logger()->sinks().pop_back(); }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  // The number of lines with these words.
  int count(const std::string& words) const {
    int lines = 0;
    std::istringstream in(text_.str());
    for (std::string line; std::getline(in, line);) lines += line.find(words) != std::string::npos;
    return lines;
  }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::shared_ptr<spdlog::sinks::ostream_sink_mt> sink_ = std::make_shared<spdlog::sinks::ostream_sink_mt>(text_);
};

}  // namespace lancet::test
