// Interface of a device that runs queued work, as GPUs do. Each stream runs its work in order; flags join streams.
//
// Kernels are written against this interface; GPUs implement it. Device memory is addressed by plain pointers that
// only work on the device's streams may dereference.
//
// Threading: one thread at a time uses a stream; different streams are used from different threads at once.
// Errors: a lost device, a refusal by the driver, a lack of memory; the message names the request.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "lancet/base/result.h"

namespace lancet::backend {

// A flag joins two streams: it is 0 when a step starts, and 1 once all work queued before signal() has ended. Flags are
// in memory that the host can write as well: when a stream fails, the host writes 1 to release the streams that wait
// for it. A wait may be queued before its signal is, so no stream's host thread waits for another's.
using Flag = std::uint32_t;

// A point in time on a stream.
class Event {
 public:
  virtual ~Event() = default;
};

// A recorded sequence of work that is launched at once.
class Graph {
 public:
  virtual ~Graph() = default;
};

// A copy between device memory; nothing if `bytes` is 0.
struct Copy {
  std::byte* to;
  const std::byte* from;
  std::size_t bytes;
};

class Stream {
 public:
  virtual ~Stream() = default;
  // Copies between device memory and host memory of Device::allocate_host, in any direction.
  virtual Status copy(void* to, const void* from, std::size_t bytes) = 0;
  // Makes all copies, in any order: none writes what another one reads or writes.
  virtual Status copy_all(std::span<const Copy> copies) {
    for (const Copy& one : copies) LANCET_TRY(copy(one.to, one.from, one.bytes));
    return {};
  }
  // The number of commands that copy_all() puts on the stream for this number of copies.
  virtual std::size_t copy_commands(std::size_t copies) const { return copies; }
  virtual Status zero(void* memory, std::size_t bytes) = 0;
  virtual Status signal(Flag* flag) = 0;
  virtual Status wait(Flag* flag) = 0;
  virtual Status record(Event& event) = 0;
  virtual Status scale(float* values, std::size_t count, float factor) = 0;  // values[i] *= factor, on device memory
  // Keeps the stream busy for this time without touching memory.
  virtual Status delay(double milliseconds) = 0;
  // To emulate a network: mark() records the time at which the stream reaches this point, and delay_from_mark() keeps
  // it busy until this time after the last mark, so that the copies of an emulated message are part of its duration. It
  // does nothing if that time has passed already.
  virtual Status mark() = 0;
  virtual Status delay_from_mark(double milliseconds) = 0;
  // From here to end_capture(), work put on the stream is recorded instead of run.
  virtual Status begin_capture() = 0;
  virtual Result<std::unique_ptr<Graph>> end_capture() = 0;
  virtual Status launch(Graph& graph) = 0;
  virtual Status synchronize() = 0;  // blocks the caller until the stream is empty; returns the stream's error, if any
  virtual Result<bool> idle() = 0;   // returns at once: true if the stream is empty
  // Health check that code polls while it waits for work of this stream; an error ends the wait.
  virtual Status watch() { return {}; }
  virtual void* native() = 0;  // cudaStream_t for kernels of that backend
};

// What launches depend on: how many blocks fill the device, and how much memory a block may have. Where sums are split
// in as many pieces as fill the device, their bits depend on its traits, so they are equal from run to run on one kind
// of device, not between kinds.
struct DeviceTraits {
  int capability = 0;  // 90: of sm_90
  int multiprocessors = 0;
  std::int64_t shared_bytes_of_block = 0;  // the most that one block may request
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;          // "NVIDIA H200"
  virtual std::string architecture() const = 0;  // "sm_90"
  virtual const DeviceTraits& traits() const = 0;
  virtual std::string identity() const = 0;       // unique to this device, and equal in all processes that share it
  virtual std::int64_t memory_bytes() const = 0;  // in all
  virtual std::int64_t free_bytes() const = 0;    // now
  // Directs the calling thread's work to this device. Every thread that uses streams calls it first.
  virtual Status bind_thread() = 0;
  // Device memory, aligned to 256 bytes, not zeroed. The error names the bytes requested and free.
  virtual Result<std::byte*> allocate(std::size_t bytes) = 0;
  virtual void free(std::byte* memory) = 0;
  // Page-locked host memory that streams can access as well; zeroed.
  virtual Result<std::byte*> allocate_host(std::size_t bytes) = 0;
  virtual void free_host(std::byte* memory) = 0;
  // urgent: its work runs before that of other streams (for communication streams).
  virtual Result<std::unique_ptr<Stream>> make_stream(bool urgent) = 0;
  // Stream `number` of a set that all executors share: they never run at once, and streams that wait for each other
  // need hardware queues of their own, which are few. Made at the first call; urgent unless the number is 0. One thread
  // at a time calls it.
  Result<Stream*> shared_stream(std::size_t number) {
    while (shared_.size() <= number) {
      LANCET_ASSIGN(shared_.emplace_back(), make_stream(!shared_.empty()));
    }
    return shared_[number].get();
  }
  virtual Result<std::unique_ptr<Event>> make_event() = 0;
  // Time between two recorded events, both of which have happened.
  virtual Result<double> milliseconds(Event& from, Event& to) = 0;
  // Work that the calling thread puts on streams from here to end_range() carries this name in profilers.
  virtual void begin_range(const std::string& /*name*/) {}
  virtual void end_range() {}

 private:
  std::vector<std::unique_ptr<Stream>> shared_;
};

// The wait of a host thread for a flag that a device stream sets.

// Blocks the stream's thread until the flag is set; an error of stream.watch() ends the wait and is returned. The
// device may idle until the thread continues, so it first spins for as long as short work takes: a sleep lasts some
// 70 us.
inline Status wait_for_flag(Flag* flag, Stream& stream) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::microseconds spin(200), pause(20);
  const auto start = Clock::now();
  while (std::atomic_ref(*flag).load(std::memory_order_acquire) == 0) {
    if (Clock::now() - start < spin) continue;
    std::this_thread::sleep_for(pause);
    LANCET_TRY(stream.watch());
  }
  return {};
}

// Lists of copies for Stream::copy_all().

// Appends a copy. One whose source and target both begin where those of the last copy end lengthens that copy.
inline void append_copy(std::vector<Copy>& copies, const Copy& next) {
  if (next.bytes == 0) return;
  if (!copies.empty()) {
    Copy& last = copies.back();
    if (last.to + last.bytes == next.to && last.from + last.bytes == next.from) {
      last.bytes += next.bytes;
      return;
    }
  }
  copies.push_back(next);
}

}  // namespace lancet::backend
