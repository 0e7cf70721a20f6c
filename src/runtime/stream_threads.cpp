// run_step() starts a step by incrementing epoch_, which wakes the streams' threads. The step ends when running_, the
// number of threads that still walk, is 0.
#include "stream_threads.h"

namespace lancet::runtime {

StreamThreads::~StreamThreads() {
  stopping_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
}

void StreamThreads::start(const Streams& streams, Walk walk) {
  walk_ = std::move(walk);
  for (std::size_t stream = 1; stream < ir::stream_count; ++stream)
    if (!streams[stream].empty()) threads_.emplace_back([this, stream] { serve(stream); });
}

void StreamThreads::run_step() {
  running_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  walk_(0);
  for (int left = running_.load(std::memory_order_acquire); left > 0; left = running_.load(std::memory_order_acquire))
    running_.wait(left, std::memory_order_acquire);
}

void StreamThreads::serve(std::size_t stream) {
  for (std::uint32_t seen = 0;;) {
    epoch_.wait(seen, std::memory_order_acquire);
    seen = epoch_.load(std::memory_order_acquire);
    if (stopping_.load()) return;
    walk_(stream);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
  }
}

}  // namespace lancet::runtime
