// StreamErrors: the errors of a step's streams. The first stream that fails is the cause; the others end because of it.
#pragma once
#include <array>
#include <atomic>
#include <optional>

#include "lancet/base/result.h"
#include "lancet/ir/program.h"

namespace lancet::runtime {

class StreamErrors {
 public:
  // No stream may run.
  void clear() {
    for (auto& error : errors_) error.reset();
    first_.store(-1, std::memory_order_relaxed);
  }
  // Called by the stream's own thread. Returns true if no other stream has failed before.
  bool add(std::size_t stream, const Error& error) {
    errors_[stream] = error;
    int none = -1;
    return first_.compare_exchange_strong(none, static_cast<int>(stream));
  }
  // The first stream's error, once all streams have ended.
  Status first() const {
    const int stream = first_.load();
    if (stream < 0) return {};
    return *errors_[static_cast<std::size_t>(stream)];
  }

 private:
  std::array<std::optional<Error>, ir::stream_count> errors_;
  std::atomic<int> first_{-1};
};

}  // namespace lancet::runtime
