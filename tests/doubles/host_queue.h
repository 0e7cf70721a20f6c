// Test double of backend::Device: streams are host threads and device memory is host memory, so that code written for
// GPUs runs and is tested on machines without one.
//
// It is strict: an address of its memory traps unless a stream's work dereferences it, work can be made to start late
// at random, and a stream that has failed runs nothing more.
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
