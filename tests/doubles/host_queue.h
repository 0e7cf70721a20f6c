// Test double of backend::Device: streams are host threads and device memory is host memory, so that code written for
// GPUs runs and is tested on machines without one.
//
// It is strict: an address of its memory traps unless a stream's work dereferences it, work can be made to start late
// at random, a stream that has failed runs nothing more, and a stream's queue can have a limit. As in a driver, a call
// that finds the queue full waits with the driver's lock, which the calls of all streams take; if no work ends for 5 s,
// it fails, and no stream of the device runs anything more.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "lancet/backend/device.h"

namespace lancet::test {

struct HostQueueOptions {
  std::int64_t bytes = std::int64_t{1} << 40;  // of device memory
  int pause_us = 0;                            // longest random delay before each piece of work, drawn from `seed`
  std::uint64_t seed = 0;
  std::string identity = {};                     // Device::identity(); empty: unique to the device
  std::atomic<int>* host_allocations = nullptr;  // counts calls of allocate_host
  std::atomic<int>* streams = nullptr;           // counts calls of make_stream
  std::atomic<std::int64_t>* events = nullptr;   // counts recorded events, which are then one millisecond apart
  std::size_t most_queued = 0;                   // pieces of work that a stream's queue holds; 0: no limit
  bool records = true;                           // false: no capture succeeds
  int dropped_copy = 0;                          // number of a copy that is not made, counted from 1; 0: none
  bool one_queue = false;                        // all streams are one hardware queue, so that they block each other
};

class HostQueueStream : public backend::Stream {
 public:
  // Runs `work` on the stream's thread; an error of it becomes the stream's error.
  virtual Status enqueue(std::function<Status()> work) = 0;
};

// Its streams are HostQueueStreams; native() returns the HostQueueStream itself.
std::unique_ptr<backend::Device> make_host_queue(const HostQueueOptions& options = {});

// Converts a device address to the address that a stream's work can dereference. Host addresses and null are unchanged.
void* host_address(const void* address);

}  // namespace lancet::test
