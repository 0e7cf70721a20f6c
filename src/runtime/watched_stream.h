// A stream that is never waited for in vain: whoever waits asks, again and again, whether it is worth while.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "lancet/backend/device.h"

namespace lancet::runtime {

// Until the stream is empty, or watch() gives an error. Short waits spin, as the driver's own do; of longer ones the
// pauses are a two-hundredth part, so that they cost neither a core nor the step's time.
template <class Watch>
Status wait_until_idle(backend::Stream& stream, const Watch& watch) {
  using namespace std::chrono;
  constexpr microseconds shortest(20), longest(500);
  const auto start = steady_clock::now();
  for (;;) {
    LANCET_ASSIGN(const bool idle, stream.idle());
    if (idle) return {};
    LANCET_TRY(watch());
    const auto pause = (steady_clock::now() - start) / 200;
    if (pause < shortest)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::min<nanoseconds>(pause, longest));
  }
}

class WatchedStream final : public backend::Stream {
 public:
  // watch is called by the thread that waits.
  WatchedStream(std::unique_ptr<backend::Stream> stream, std::function<Status()> watch)
      : stream_(std::move(stream)), watch_(std::move(watch)) {}

  Status copy(void* to, const void* from, std::size_t bytes) override { return stream_->copy(to, from, bytes); }
  Status zero(void* memory, std::size_t bytes) override { return stream_->zero(memory, bytes); }
  Status signal(backend::Flag* flag) override { return stream_->signal(flag); }
  Status wait(backend::Flag* flag) override { return stream_->wait(flag); }
  Status record(backend::Event& event) override { return stream_->record(event); }
  Status scale(float* values, std::size_t count, float factor) override {
    return stream_->scale(values, count, factor);
  }
  Status delay(double milliseconds) override { return stream_->delay(milliseconds); }
  Status begin_capture() override { return stream_->begin_capture(); }
  Result<std::unique_ptr<backend::Graph>> end_capture() override { return stream_->end_capture(); }
  Status launch(backend::Graph& graph) override { return stream_->launch(graph); }
  Status synchronize() override { return wait_until_idle(*stream_, watch_); }
  Result<bool> idle() override { return stream_->idle(); }
  Status watch() override { return watch_(); }
  void* native() override { return stream_->native(); }

 private:
  const std::unique_ptr<backend::Stream> stream_;
  const std::function<Status()> watch_;
};

}  // namespace lancet::runtime
