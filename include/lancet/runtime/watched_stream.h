// WatchedStream: a device stream whose waits poll a health check, so that a failed stream cannot hang the caller.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "lancet/backend/device.h"

namespace lancet::runtime {

// The duration of the last wait of one kind, which predicts the next.
struct UsualWait {
  std::chrono::nanoseconds took{0};
};

// The pause until the next poll of a wait that has lasted `waited`; zero: poll at once. Short waits spin, as the
// driver's own do. Longer ones pause for 1/200 of `waited`, so that they occupy no core and delay the step little. Near
// the usual end (before and after it) they spin again, since a pause would end late.
inline std::chrono::nanoseconds pause_of(std::chrono::nanoseconds waited, const UsualWait& usual) {
  using namespace std::chrono;
  constexpr nanoseconds shortest = microseconds(20), longest = microseconds(500), least_near = microseconds(200);
  const nanoseconds near = std::max(least_near, usual.took / 50), left = usual.took - waited;
  if (usual.took > nanoseconds(0) && left < near && left > -near) return {};
  nanoseconds pause = std::min(waited / 200, longest);
  if (left > near) pause = std::min(pause, left - near);
  return pause < shortest ? nanoseconds(0) : pause;
}

// Waits until the device stream is empty; an error of watch() ends the wait and is returned. usual: the duration of the
// previous wait of this kind; updated. end: a flag in host memory that the device stream sets last; if given, the
// driver, whose locks other threads need, is polled only once per 200 microseconds until the flag is set, to notice
// errors.
template <class Watch>
Status wait_until_idle(backend::Stream& stream, const Watch& watch, UsualWait* usual = nullptr,
                       backend::Flag* end = nullptr) {
  using Clock = std::chrono::steady_clock;
  constexpr auto poll_every = std::chrono::microseconds(200);
  const auto start = Clock::now();
  auto polled = start;
  for (;;) {
    bool idle = false;
    const auto now = Clock::now();
    if (!end || std::atomic_ref(*end).load(std::memory_order_acquire) != 0 || now - polled >= poll_every) {
      LANCET_ASSIGN(idle, stream.idle());
      polled = now;
    }
    const auto waited = Clock::now() - start;
    if (idle) {
      if (usual) usual->took = waited;
      return {};
    }
    LANCET_TRY(watch());
    const auto pause = pause_of(waited, usual ? *usual : UsualWait{});
    if (pause.count() == 0)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(pause);
  }
}

// Forwards all calls to the stream and counts the commands that they put on it; synchronize() polls `watch`.
class WatchedStream final : public backend::Stream {
 public:
  // stream: outlives this object. The waiting thread calls `watch`.
  WatchedStream(backend::Stream& stream, std::function<Status()> watch) : stream_(stream), watch_(std::move(watch)) {}

  // The commands put on the stream so far. A recorded graph is one. Kernels and libraries put theirs on native(), which
  // they ask for at each launch, so each call of it is one, too.
  std::size_t commands() const { return commands_; }

  Status copy(void* to, const void* from, std::size_t bytes) override { return counted().copy(to, from, bytes); }
  Status copy_all(std::span<const backend::Copy> copies) override {
    commands_ += copy_commands(copies.size());
    return stream_.copy_all(copies);
  }
  std::size_t copy_commands(std::size_t copies) const override { return stream_.copy_commands(copies); }
  Status zero(void* memory, std::size_t bytes) override { return counted().zero(memory, bytes); }
  Status signal(backend::Flag* flag) override { return counted().signal(flag); }
  Status wait(backend::Flag* flag) override { return counted().wait(flag); }
  Status record(backend::Event& event) override { return counted().record(event); }
  Status scale(float* values, std::size_t count, float factor) override {
    return counted().scale(values, count, factor);
  }
  Status delay(double milliseconds) override { return counted().delay(milliseconds); }
  Status mark() override { return counted().mark(); }
  Status delay_from_mark(double milliseconds) override { return counted().delay_from_mark(milliseconds); }
  Status begin_capture() override { return stream_.begin_capture(); }
  Result<std::unique_ptr<backend::Graph>> end_capture() override { return stream_.end_capture(); }
  Status launch(backend::Graph& graph) override { return counted().launch(graph); }
  Status synchronize() override { return wait_until_idle(stream_, watch_); }
  Result<bool> idle() override { return stream_.idle(); }
  Status watch() override {
    LANCET_TRY(stream_.watch());
    return watch_();
  }
  void* native() override { return counted().native(); }

 private:
  backend::Stream& counted() {
    ++commands_;
    return stream_;
  }

  backend::Stream& stream_;
  const std::function<Status()> watch_;
  std::size_t commands_ = 0;
};

}  // namespace lancet::runtime
