// Communicator for tensors in device memory, among the ranks of one stream: its calls queue work on a device stream.
//
// Threading, order and broken communicators are as in communicator.h. A call may block its caller (not the stream's
// earlier work), as the staged transport does; it never waits for work that is queued later.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "lancet/backend/device.h"
#include "lancet/comm/communicator.h"
#include "lancet/comm/peers.h"

namespace lancet::comm {

class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string transport() const = 0;  // "nccl", "mpi", "mirrored"

  // Allocates the extra memory of calls that send and receive at most this many bytes in total. Called before the first
  // of them: an allocation while a stream waits for a flag may block until that stream is done.
  virtual Status reserve(std::size_t) { return {}; }
  // Sends and receives as Communicator does, on device memory.
  virtual Status send_receive(backend::Stream& stream, std::span<const Segment> sends,
                              std::span<const Segment> receives) = 0;
  // In place, over all ranks, on device memory. The order of the sum is the transport's, the same in every run.
  virtual Status all_reduce_sum(backend::Stream& stream, std::span<float> values) = 0;
  // Returns a window: device memory in which the kernels of all ranks access each other's tensors, provided that a
  // tensor has the same offset on all ranks. Empty if the transport has none. It lives as long as the communicator, or
  // until the next call. Collective, with the same size on all ranks; no work is queued.
  virtual Result<std::span<std::byte>> make_window(std::size_t) { return std::span<std::byte>(); }
  // Calls `launch`, which queues a kernel on the stream that accesses the peers' windows and meets those of the other
  // ranks. For the communicator's own stream, since all ranks launch such kernels in one order. Error: there is no
  // window, or the communicator was aborted.
  using WindowLaunch = std::function<Status(backend::Stream&, const Window&)>;
  virtual Status in_windows(backend::Stream&, const WindowLaunch&) {
    return internal_error("this transport has no window");
  }
  bool in_window(const void* start, std::size_t bytes) const {
    const auto* at = static_cast<const std::byte*>(start);
    return !window_.empty() && at >= window_.data() && at + bytes <= window_.data() + window_.size();
  }
  // Returns an error that occurred while queued calls ran (a lost peer). May be called at any time.
  virtual Status check() = 0;
  // After a queued call has timed out: asks which ranks still respond and describes the missing ones ("nothing came
  // from rank 1"); empty if unknown. Takes some seconds; the communicator cannot be used afterwards.
  virtual std::string who_is_missing() { return {}; }
  virtual void abort(const std::string& why) = 0;
  // Called before abort(): kernels that access the peers' windows, now or later, stop writing to them.
  virtual void stop_pushes() {}

 protected:
  std::span<std::byte> window_;
};

// Aborts all communicators at the same time, because the driver may end one only after another has ended; null entries
// are skipped. If the driver does not return within `most`, the process cannot end in order: it logs one line and exits
// with code 5.
void abort_all(std::span<DeviceCommunicator* const> communicators, const std::string& why,
               std::chrono::milliseconds most = std::chrono::seconds(20));

// The transports of DeviceCommunicator. Each function makes the communicator of one stream from that stream's host
// communicator; it is collective, and called in the same order on all ranks.
struct DeviceStream {
  backend::Device* device = nullptr;
  Communicator* host = nullptr;  // over the same ranks; outlives the result
  int max_ctas = 0;              // thread blocks that a collective may use; 0: the library chooses
  std::chrono::milliseconds timeout = std::chrono::seconds(300);
};

// "mpi": through page-locked host memory and the stream's host communicator.
Result<std::unique_ptr<DeviceCommunicator>> make_staged(const DeviceStream& stream);
// "mirrored": calls last as long as on a declared network. Config error: stream.host is not of a mirrored world
// (make_mirrored_world).
Result<std::unique_ptr<DeviceCommunicator>> make_mirrored(const DeviceStream& stream);
// "nccl": of the CUDA plugin. Config error: built without NCCL.
Result<std::unique_ptr<DeviceCommunicator>> make_nccl(const DeviceStream& stream);

// The ranks that an instruction goes over, as one of them sees them.
struct Group {
  int place = 0, size = 1;                    // of this rank among the group's ranks, and their number
  Communicator* comm = nullptr;               // null on the compute stream, and where a rank is alone
  DeviceCommunicator* device_comm = nullptr;  // likewise; for tensors on a device
};

// The group of all ranks of a communicator. The argument outlives it.
inline Group group_of(Communicator& comm) { return {comm.rank(), comm.size(), &comm, nullptr}; }
inline Group group_of(DeviceCommunicator& comm) { return {comm.rank(), comm.size(), nullptr, &comm}; }

// The groups of a stream, by the attribute `axes` of the instructions that go over them (ir/groups.h). The first, "",
// is all ranks, which instructions without the attribute go over.
using Groups = std::map<std::string, Group, std::less<>>;

// The one group of all ranks of a communicator; no group of a null communicator.
template <class AnyCommunicator>
Groups all_ranks(AnyCommunicator* comm) {
  return comm ? Groups{{"", group_of(*comm)}} : Groups();
}

}  // namespace lancet::comm
