// Devices of several ranks whose kernels run together on the host: a thread of its own runs the queued work of all
// streams, so that kernels of one stream wait for those of another stream or rank, and host threads go on meanwhile.
#pragma once
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "ops/device/emulated_ranks.h"

namespace lancet::test {

class HostRanks {
 public:
  static constexpr int streams = 4;  // of a rank
  // places: blocks that a rank can hold at the same time, of all its streams.
  HostRanks(int ranks, int places, std::uint64_t order)
      : kernels_(((ops::device::emulated::order_seed = order), ranks), places, streams),
        queues_(std::size_t(ranks * streams)),
        thread_([this, order] { run(order); }) {}
  ~HostRanks() {
    stop_ = true;
    thread_.join();
  }

  // Work of a stream, called again and again until it returns that it has ended.
  void put(int stream, std::function<bool()> work) {
    const std::lock_guard lock(mutex_);
    queues_[std::size_t(stream)].push_back(std::move(work));
  }
  void launch(int stream, ops::device::emulated::Launch launch) {
    put(stream, [this, stream, launch = std::move(launch), begun = false]() mutable {
      if (!std::exchange(begun, true)) queue(stream).add(std::move(launch));
      return queue(stream).ended();
    });
  }
  bool idle(int stream) {
    const std::lock_guard lock(mutex_);
    return queues_[std::size_t(stream)].empty();
  }
  // Calls f() while no kernel runs.
  template <class F>
  void between_turns(const F& f) {
    const std::lock_guard lock(mutex_);
    f();
  }

 private:
  ops::device::emulated::LaunchQueue& queue(int stream) { return kernels_.queue(stream / streams, stream % streams); }

  void run(std::uint64_t order) {
    ops::device::emulated::Order pauses(order);
    while (!stop_) {
      bool moved = false;
      {
        const std::lock_guard lock(mutex_);
        for (auto& queue : queues_)
          for (; !queue.empty() && queue.front()(); moved = true) queue.pop_front();
        moved = kernels_.turn() || moved;
      }
      if (!moved || pauses.below(4) == 0) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  std::mutex mutex_;
  ops::device::emulated::Ranks kernels_;
  std::vector<std::deque<std::function<bool()>>> queues_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class HostRankStream final : public HostStream, public ops::device::emulated::Launches {
 public:
  HostRankStream(HostRanks& host, int number) : host_(host), number_(number) {}
  void add(ops::device::emulated::Launch launch) override { host_.launch(number_, std::move(launch)); }
  void* native() override { return static_cast<ops::device::emulated::Launches*>(this); }
  Status copy(void* to, const void* from, std::size_t bytes) override {
    return put([=, this] { return HostStream::copy(to, from, bytes).ok(); });
  }
  Status zero(void* memory, std::size_t bytes) override {
    return put([=, this] { return HostStream::zero(memory, bytes).ok(); });
  }
  Status signal(backend::Flag* flag) override {
    return put([flag] {
      std::atomic_ref(*flag).store(1, std::memory_order_release);
      return true;
    });
  }
  Status wait(backend::Flag* flag) override {
    return put([flag] { return std::atomic_ref(*flag).load(std::memory_order_acquire) != 0; });
  }
  Status synchronize() override {
    while (!host_.idle(number_)) std::this_thread::sleep_for(std::chrono::microseconds(20));
    return {};
  }
  Result<bool> idle() override { return host_.idle(number_); }

 private:
  Status put(std::function<bool()> work) {
    host_.put(number_, std::move(work));
    return {};
  }
  HostRanks& host_;
  const int number_;
};

class HostRankDevice final : public HostDevice {
 public:
  HostRankDevice(HostRanks& host, int rank) : host_(host), next_(rank * HostRanks::streams) {}
  Result<std::unique_ptr<backend::Stream>> make_stream(bool) override {
    return std::unique_ptr<backend::Stream>(std::make_unique<HostRankStream>(host_, next_++));
  }

 private:
  HostRanks& host_;
  int next_;
};

}  // namespace lancet::test
