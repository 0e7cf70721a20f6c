// A device that works from queues and is none: streams are host threads, its memory is the host's. With it, what is
// written for GPUs runs and is tested where there is none.
//
// It is as unforgiving as it can be: addresses of its memory trap where anyone but its streams follows them, work
// starts as late as one likes, and a stream that failed does nothing any more.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "lancet/backend/device.h"

namespace lancet::backend {

struct HostQueueOptions {
  std::int64_t bytes = std::int64_t{1} << 40;  // of device memory
  int pause_us = 0;                            // pieces of work start up to so much later, drawn from `seed`
  std::uint64_t seed = 0;
  std::string identity = {};                     // Device::identity(); empty: its own
  std::atomic<int>* host_allocations = nullptr;  // counts calls of allocate_host
};

class HostStream : public Stream {
 public:
  // `work` runs on the stream's thread; its error is the stream's.
  virtual Status enqueue(std::function<Status()> work) = 0;
};

// Streams are HostStreams; native() of one is the HostStream itself.
std::unique_ptr<Device> make_host_queue(const HostQueueOptions& options = {});

// The address that a stream's work follows. Those of the host stay as they are; null stays null.
void* host_address(const void* address);

}  // namespace lancet::backend
