// A device that works from queues, as GPUs do. Work is put on streams and runs there in order; flags join streams.
//
// Kernels are written against this interface and stay the same whether the queues are a GPU's or a test's. The memory
// of a device is addressed by plain pointers that only its streams may follow.
//
// Threading: one thread at a time uses a stream; different streams are used from different threads at once.
// Errors: a lost device, a driver that refuses, memory that is not there; the message says what was asked.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "lancet/base/result.h"

namespace lancet::backend {

// Joins streams: 0 when a step starts, 1 once what came before signal() has ended. It lies in memory that the host may
// write too: the host releases whoever waits by writing 1, so that no stream waits for a stream that has failed. A wait
// may be queued before its signal is, so no stream's host thread waits for another's.
using Flag = std::uint32_t;

// A point of time on a stream.
class Event {
 public:
  virtual ~Event() = default;
};

// A recorded sequence of work that is launched at once.
class Graph {
 public:
  virtual ~Graph() = default;
};

class PacedStream;

class Stream {
 public:
  virtual ~Stream() = default;
  // Between any two of device memory and host memory that Device::allocate_host gave.
  virtual Status copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual Status zero(void* memory, std::size_t bytes) = 0;
  virtual Status signal(Flag* flag) = 0;
  virtual Status wait(Flag* flag) = 0;
  virtual Status record(Event& event) = 0;
  // values[i] *= factor, on device memory.
  virtual Status scale(float* values, std::size_t count, float factor) = 0;
  // Keeps the stream busy for so long without touching memory: an emulated wire.
  virtual Status delay(double milliseconds) = 0;
  // What is put on the stream from here on is recorded instead of run, until end_capture().
  virtual Status begin_capture() = 0;
  virtual Result<std::unique_ptr<Graph>> end_capture() = 0;
  virtual Status launch(Graph& graph) = 0;
  // Blocks the caller until the stream is empty; returns what went wrong on it.
  virtual Status synchronize() = 0;
  // The same without blocking: whether the stream is empty.
  virtual Result<bool> idle() = 0;
  // What code asks again and again while it waits for work of this stream; an error ends the wait.
  virtual Status watch() { return {}; }
  // What it can do where a wire is emulated (paced_stream.h); null: only delay(). No cast to a class of the program's
  // is asked of a stream that a module made.
  virtual PacedStream* paced() { return nullptr; }
  virtual void* native() = 0;  // cudaStream_t for kernels of that backend
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;          // "NVIDIA H200"
  virtual std::string architecture() const = 0;  // "sm_90"
  // The same for all processes that share the device, and no other's.
  virtual std::string identity() const = 0;
  virtual std::int64_t free_bytes() const = 0;  // at the moment
  // The calling thread's work goes to this device. Every thread that uses streams says so first.
  virtual Status bind_thread() = 0;
  // At multiples of 256 bytes; not zeroed. Error: bytes asked and free.
  virtual Result<std::byte*> allocate(std::size_t bytes) = 0;
  virtual void free(std::byte* memory) = 0;
  // Page-locked host memory that streams may follow as well; zeroed.
  virtual Result<std::byte*> allocate_host(std::size_t bytes) = 0;
  virtual void free_host(std::byte* memory) = 0;
  // urgent: its work goes before that of other streams (communication streams).
  virtual Result<std::unique_ptr<Stream>> make_stream(bool urgent) = 0;
  virtual Result<std::unique_ptr<Event>> make_event() = 0;
  // Between two recorded events that have ended.
  virtual Result<double> milliseconds(Event& from, Event& to) = 0;
  // What the calling thread puts on streams from here to end_range() carries this name in profilers.
  virtual void begin_range(const std::string& /*name*/) {}
  virtual void end_range() {}
};

}  // namespace lancet::backend
