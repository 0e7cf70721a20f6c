// StreamThreads: walks the streams of a plan at the same time, the compute stream on the caller's thread, every other
// stream on a thread of its own, which lives as long as this object.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "bound_plan.h"

namespace lancet::runtime {

class StreamThreads {
 public:
  using Walk = std::function<void(std::size_t stream)>;

  ~StreamThreads();
  // Starts a thread for each stream that has steps. walk(stream) executes one stream's share of a step. What it uses
  // must outlive this object.
  void start(const Streams& streams, Walk walk);
  // Walks every stream once; returns when all have ended.
  void run_step();

 private:
  void serve(std::size_t stream);

  Walk walk_;
  std::atomic<std::uint32_t> epoch_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::jthread> threads_;  // the last member: the threads use all others and must end first
};

}  // namespace lancet::runtime
