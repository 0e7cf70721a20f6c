// Backlog: bounds how many commands wait on a device stream.
//
// A driver takes only so many commands of a stream (CUDA about 1,000), then the call blocks until the device has
// executed some. The blocked thread keeps a lock of the driver, so that the threads of other streams block as well,
// among them the one that would put the work that the device waits for: the step never ends, and no thread is left that
// could notice it. So the host must not get that far ahead.
#pragma once
#include <array>

#include "lancet/runtime/watched_stream.h"

namespace lancet::runtime {

class Backlog {
 public:
  // The commands between two marks. Far below what a driver takes, and more than enough to keep a device busy while the
  // host thread wakes up.
  static constexpr std::size_t between_marks = 200;
  using Marks = std::array<backend::Flag*, 2>;

  Backlog() = default;
  // Both outlive this object.
  Backlog(WatchedStream& queue, Marks marks) : queue_(&queue), marks_(marks) {}

  void start();  // starts a step: the stream is empty and the marks are 0
  // Called before each instruction and each recorded section. After every 200 commands it puts a mark, a flag, and
  // waits until the stream has reached the mark before. So at most 400 commands and those of one instruction wait.
  // Error: that of the stream's watch().
  Status limit();

 private:
  WatchedStream* queue_ = nullptr;
  Marks marks_{};           // used in turns
  std::size_t turn_ = 0;    // number of marks in this step
  std::size_t marked_ = 0;  // commands of the stream at the last mark
};

}  // namespace lancet::runtime
