// Each stream is a host thread that runs a queue of functions in order; capturing collects the functions in a graph
// instead. Device memory is host memory whose addresses have one extra bit set, which makes them invalid for the CPU;
// work on a stream removes the bit (host_address) before it dereferences an address.
#include "host_queue.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "doubles/device_traits.h"
#include "lancet/backend/cpu/buffer.h"
#include "lancet/backend/device.h"
#include "lancet/base/check.h"
#include "lancet/base/random.h"

namespace lancet::test {
namespace {

using namespace backend;
using Clock = std::chrono::steady_clock;
using Work = std::function<Status()>;

// The bit that marks addresses of device memory. The CPU cannot access an address that has it but not the bits above.
constexpr std::uintptr_t device_bit = std::uintptr_t{1} << 62;

std::byte* device_address(void* memory) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(memory) | device_bit);
}

class HostEvent final : public Event {
 public:
  explicit HostEvent(std::atomic<std::int64_t>* events) : events_(events) {}
  void record() {
    at_.store(events_ ? 1'000'000 * ++*events_ : Clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
  }
  std::int64_t at() const { return at_.load(); }  // nanoseconds

 private:
  std::atomic<std::int64_t>* const events_;
  std::atomic<std::int64_t> at_{0};
};

class HostGraph final : public Graph {
 public:
  std::vector<Work> work;
};

struct Driver {
  std::mutex lock;
  std::atomic<bool> stuck{false};  // a call has blocked for ever
  std::atomic<int> copies{0};
};

// A hardware queue: a thread that runs work in order.
class Worker {
 public:
  Worker(const HostQueueOptions& options, std::uint64_t number, std::shared_ptr<Driver> driver)
      : options_(options),
        random_(options.seed, number),
        driver_(std::move(driver)),
        thread_([this](std::stop_token stop) { serve(stop); }) {}

  Status enqueue(Work work) {
    if (options_.most_queued == 0) return put(std::move(work));
    const std::lock_guard driver(driver_->lock);
    LANCET_TRY(wait_for_room());
    return put(std::move(work));
  }
  bool is_stuck() const { return driver_->stuck; }
  bool drops_copy() const { return ++driver_->copies == options_.dropped_copy; }
  Status synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queue_.empty() && !busy_; });
    return status_;
  }
  Result<bool> idle() {
    const std::lock_guard lock(mutex_);
    if (!queue_.empty() || busy_) return false;
    LANCET_TRY(status_);
    return true;
  }
  Status watch() {
    const std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  Status put(Work work) {
    const std::lock_guard lock(mutex_);
    if (!status_.ok()) return status_;
    queue_.push_back(std::move(work));
    changed_.notify_all();
    return {};
  }
  Status wait_for_room() {
    std::unique_lock lock(mutex_);
    const auto room = [&] { return queue_.size() < options_.most_queued; };
    if (!driver_->stuck && changed_.wait_for(lock, std::chrono::seconds(5), room)) return {};
    driver_->stuck = true;
    return internal_error(
        fmt::format("a call has blocked in the driver for 5 s: the stream's queue holds {} commands", queue_.size()));
  }
  void serve(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    for (std::uint64_t done = 0;; ++done) {
      changed_.wait(lock, stop, [&] { return !queue_.empty(); });
      if (queue_.empty()) return;
      const Work work = std::move(queue_.front());
      queue_.pop_front();
      changed_.notify_all();
      if (!status_.ok() || driver_->stuck) continue;
      busy_ = true;
      lock.unlock();
      Status status = attempt(work, done);
      lock.lock();
      busy_ = false;
      if (!status.ok()) status_ = std::move(status);
      changed_.notify_all();
    }
  }
  Status attempt(const Work& work, std::uint64_t number) {
    if (const auto most = std::uint64_t(options_.pause_us); most > 0)
      std::this_thread::sleep_for(std::chrono::microseconds(random_.below(number, most + 1)));
    try {
      return work();
    } catch (const std::exception& error) {
      return internal_error(error.what());
    }
  }

  const HostQueueOptions options_;
  const Philox random_;
  const std::shared_ptr<Driver> driver_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Work> queue_;
  bool busy_ = false;
  Status status_;
  std::jthread thread_;  // last: it uses all of the above and ends first
};

class ThreadStream final : public HostQueueStream {
 public:
  ThreadStream(std::shared_ptr<Worker> worker, bool records) : records_(records), worker_(std::move(worker)) {}

  Status enqueue(Work work) override {
    if (capturing_) {
      captured_->work.push_back(std::move(work));
      return {};
    }
    return worker_->enqueue(std::move(work));
  }
  Status copy(void* to, const void* from, std::size_t bytes) override {
    if (worker_->drops_copy()) return {};
    return enqueue([=]() -> Status {
      std::memcpy(host_address(to), host_address(from), bytes);
      return {};
    });
  }
  Status zero(void* memory, std::size_t bytes) override {
    return enqueue([=]() -> Status {
      std::memset(host_address(memory), 0, bytes);
      return {};
    });
  }
  Status signal(Flag* flag) override {
    LANCET_CHECK(!capturing_, "a signal is not recorded");
    return enqueue([=]() -> Status {
      std::atomic_ref(*flag).store(1, std::memory_order_release);
      return {};
    });
  }
  // Polls the flag, as a device does, since a host that writes a flag does not notify the stream.
  Status wait(Flag* flag) override {
    LANCET_CHECK(!capturing_, "a wait is not recorded");
    return enqueue([=, worker = worker_.get()]() -> Status {
      while (std::atomic_ref(*flag).load(std::memory_order_acquire) == 0) {
        if (worker->is_stuck()) return internal_error("a wait for a flag ended since a call has blocked in the driver");
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
      return {};
    });
  }
  Status record(Event& event) override {
    return enqueue([&event]() -> Status {
      static_cast<HostEvent&>(event).record();
      return {};
    });
  }
  Status scale(float* values, std::size_t count, float factor) override {
    return enqueue([=]() -> Status {
      auto* x = static_cast<float*>(host_address(values));
      for (std::size_t i = 0; i < count; ++i) x[i] *= factor;
      return {};
    });
  }
  Status delay(double milliseconds) override {
    return enqueue([=]() -> Status {
      std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(milliseconds));
      return {};
    });
  }
  Status mark() override {
    return enqueue([this]() -> Status {
      mark_ = Clock::now();
      return {};
    });
  }
  Status delay_from_mark(double milliseconds) override {
    return enqueue([=, this]() -> Status {
      std::this_thread::sleep_until(mark_ + std::chrono::duration<double, std::milli>(milliseconds));
      return {};
    });
  }
  Status begin_capture() override {
    LANCET_CHECK(!capturing_, "the stream is recording already");
    capturing_ = true;
    captured_ = std::make_unique<HostGraph>();
    return {};
  }
  Result<std::unique_ptr<Graph>> end_capture() override {
    LANCET_CHECK(capturing_, "the stream is not recording");
    capturing_ = false;
    if (!records_) return internal_error("this host queue does not record");
    return std::unique_ptr<Graph>(std::move(captured_));
  }
  Status launch(Graph& graph) override {
    return enqueue([&graph]() -> Status {
      for (const Work& work : static_cast<HostGraph&>(graph).work) LANCET_TRY(work());
      return {};
    });
  }
  Status synchronize() override {
    if (capturing_) return internal_error("a stream that records cannot be waited for");
    return worker_->synchronize();
  }
  Result<bool> idle() override {
    if (capturing_) return internal_error("a stream that records cannot be waited for");
    return worker_->idle();
  }
  Status watch() override { return worker_->watch(); }
  void* native() override { return static_cast<HostQueueStream*>(this); }

 private:
  const bool records_;
  Clock::time_point mark_;  // used by the worker's thread
  bool capturing_ = false;  // used by the thread that calls the stream
  std::unique_ptr<HostGraph> captured_;
  const std::shared_ptr<Worker> worker_;  // last: its work uses all of the above and ends first
};

class HostQueue final : public Device {
 public:
  explicit HostQueue(const HostQueueOptions& options) : options_(options) {}
  std::string name() const override { return "host queue"; }
  std::string architecture() const override { return "host"; }
  const DeviceTraits& traits() const override { return test::hopper_traits; }
  std::string identity() const override {
    return options_.identity.empty() ? fmt::format("{}", static_cast<const void*>(this)) : options_.identity;
  }
  std::int64_t memory_bytes() const override { return options_.bytes; }
  std::int64_t free_bytes() const override {
    const std::lock_guard lock(mutex_);
    return free_unlocked();
  }
  Status bind_thread() override { return {}; }
  Result<std::byte*> allocate(std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    if (std::int64_t(bytes) > free_unlocked())
      return config_error(
          fmt::format("expected {} bytes of memory on {}, found {} free", bytes, name(), free_unlocked()));
    auto memory = cpu::Buffer::raw(bytes);
    std::byte* address = device_address(memory.data());
    used_ += std::int64_t(bytes);
    blocks_.emplace(address, std::move(memory));
    return address;
  }
  void free(std::byte* memory) override { drop(memory, true); }
  Result<std::byte*> allocate_host(std::size_t bytes) override {
    if (options_.host_allocations) ++*options_.host_allocations;
    const std::lock_guard lock(mutex_);
    auto memory = cpu::Buffer::zeroed(bytes);
    auto* address = memory.as<std::byte>();
    blocks_.emplace(address, std::move(memory));
    return address;
  }
  void free_host(std::byte* memory) override { drop(memory, false); }
  Result<std::unique_ptr<Stream>> make_stream(bool) override {
    if (options_.streams) ++*options_.streams;
    const std::lock_guard lock(mutex_);
    auto worker = shared_ ? shared_ : std::make_shared<Worker>(options_, ++streams_, driver_);
    if (options_.one_queue) shared_ = worker;
    return std::unique_ptr<Stream>(std::make_unique<ThreadStream>(std::move(worker), options_.records));
  }
  Result<std::unique_ptr<Event>> make_event() override {
    return std::unique_ptr<Event>(std::make_unique<HostEvent>(options_.events));
  }
  Result<double> milliseconds(Event& from, Event& to) override {
    return double(static_cast<HostEvent&>(to).at() - static_cast<HostEvent&>(from).at()) * 1e-6;
  }

 private:
  std::int64_t free_unlocked() const { return options_.bytes - used_; }
  void drop(std::byte* memory, bool device) {
    if (!memory) return;
    const std::lock_guard lock(mutex_);
    const auto it = blocks_.find(memory);
    LANCET_CHECK(it != blocks_.end(), "memory that this device did not allocate");
    if (device) used_ -= std::int64_t(it->second.size());
    blocks_.erase(it);
  }

  const HostQueueOptions options_;
  mutable std::mutex mutex_;
  std::map<std::byte*, cpu::Buffer> blocks_;
  std::int64_t used_ = 0;
  std::uint64_t streams_ = 0;
  const std::shared_ptr<Driver> driver_ = std::make_shared<Driver>();
  std::shared_ptr<Worker> shared_;  // of all streams, if they share one
};

}  // namespace

std::unique_ptr<backend::Device> make_host_queue(const HostQueueOptions& options) {
  return std::make_unique<HostQueue>(options);
}

void* host_address(const void* address) {
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(address) & ~device_bit);
}

}  // namespace lancet::test
