// Device communicator over the host: bytes are copied to page-locked memory, sent by the stream's host communicator,
// and copied back to the device. For machines where the device's own transport cannot run, and for tests.
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "lancet/base/log.h"
#include "lancet/comm/device_communicator.h"

namespace lancet::comm {
namespace {

// Page-locked memory that grows if a call needs more than was reserved.
class HostMemory {
 public:
  explicit HostMemory(backend::Device& device) : device_(device) {}
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  ~HostMemory() { device_.free_host(start_); }

  Result<std::byte*> at_least(std::size_t bytes) {
    if (bytes <= bytes_) return start_;
    device_.free_host(start_);
    start_ = nullptr;
    bytes_ = 0;
    LANCET_ASSIGN(start_, device_.allocate_host(bytes));
    bytes_ = bytes;
    return start_;
  }

 private:
  backend::Device& device_;
  std::byte* start_ = nullptr;
  std::size_t bytes_ = 0;
};

class Staged final : public DeviceCommunicator {
 public:
  explicit Staged(const DeviceStream& stream) : host_(*stream.host), memory_(*stream.device) {}

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  std::string transport() const override { return host_.transport(); }

  Status reserve(std::size_t bytes) override {
    LANCET_TRY(memory_.at_least(bytes));
    return {};
  }

  Status send_receive(backend::Stream& stream, std::span<const Segment> sends,
                      std::span<const Segment> receives) override {
    std::size_t bytes = 0;
    for (const std::span<const Segment> segments : {sends, receives})
      for (const Segment& segment : segments) bytes += segment.bytes;
    LANCET_TRY(stream.synchronize());  // the previous call's copies to the device are done
    LANCET_ASSIGN(std::byte * at, memory_.at_least(bytes));
    sends_.clear();
    receives_.clear();
    for (const Segment& segment : sends) {
      if (segment.bytes > 0) LANCET_TRY(stream.copy(at, segment.data, segment.bytes));
      sends_.push_back({segment.peer, at, segment.bytes});
      at += segment.bytes;
    }
    for (const Segment& segment : receives) {
      receives_.push_back({segment.peer, at, segment.bytes});
      at += segment.bytes;
    }
    LANCET_TRY(stream.synchronize());
    LANCET_TRY(host_.send_receive(sends_, receives_));
    for (std::size_t i = 0; i < receives.size(); ++i)
      if (receives[i].bytes > 0) LANCET_TRY(stream.copy(receives[i].data, receives_[i].data, receives[i].bytes));
    return {};
  }

  Status all_reduce_sum(backend::Stream& stream, std::span<float> values) override {
    LANCET_TRY(stream.synchronize());
    LANCET_ASSIGN(std::byte* const at, memory_.at_least(values.size_bytes()));
    LANCET_TRY(stream.copy(at, values.data(), values.size_bytes()));
    LANCET_TRY(stream.synchronize());
    LANCET_TRY(host_.all_reduce_sum({reinterpret_cast<float*>(at), values.size()}));
    return stream.copy(values.data(), at, values.size_bytes());
  }

  Status check() override { return {}; }  // calls return their errors at once
  void abort(const std::string& why) override { host_.abort(why); }

 private:
  Communicator& host_;
  HostMemory memory_;
  std::vector<Segment> sends_, receives_;
};

}  // namespace

Result<std::unique_ptr<DeviceCommunicator>> make_staged(const DeviceStream& stream) {
  return std::unique_ptr<DeviceCommunicator>(std::make_unique<Staged>(stream));
}

// Each communicator is aborted on a detached thread of its own; the caller waits until all have returned or the time is
// over. The threads share ownership of their counter, since they may outlive the call.
namespace {

// Number of aborts that have not returned.
struct Pending {
  std::mutex mutex;
  std::condition_variable changed;
  int count = 0;
};

}  // namespace

void abort_all(std::span<DeviceCommunicator* const> communicators, const std::string& why,
               std::chrono::milliseconds most) {
  const auto pending = std::make_shared<Pending>();
  for (DeviceCommunicator* communicator : communicators) pending->count += communicator != nullptr;
  for (DeviceCommunicator* communicator : communicators) {
    if (!communicator) continue;
    std::thread([communicator, why, pending] {
      communicator->abort(why);
      const std::lock_guard lock(pending->mutex);
      if (--pending->count == 0) pending->changed.notify_all();
    }).detach();
  }
  std::unique_lock lock(pending->mutex);
  if (pending->changed.wait_for(lock, most, [&] { return pending->count == 0; })) return;
  log::error("{}; the driver did not abort this rank's pending calls within {:.3g} s", why,
             double(most.count()) * 1e-3);
  std::_Exit(static_cast<int>(ExitCode::communication));
}

}  // namespace lancet::comm
