// What the ranks of one stream say to each other when their tensors lie on devices: the calls put work on a stream.
//
// Threading, order and broken communicators: as communicator.h says. A call may block its caller (not the stream's
// earlier work), as the staged transport does; it never waits for work that is queued later.
#pragma once
#include <chrono>
#include <span>
#include <string>

#include "lancet/backend/device.h"
#include "lancet/comm/communicator.h"
#include "lancet/comm/row_push.h"

namespace lancet::comm {

class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string transport() const = 0;  // "nccl", "mpi", "emulated"

  // Before the first of the calls that send and receive at most so many bytes each, in all: what they need besides is
  // taken now. Taking memory while a stream waits for a flag may wait for that stream.
  virtual Status reserve(std::size_t) { return {}; }
  // As Communicator::exchange, on device memory.
  virtual Status exchange(backend::Stream& stream, std::span<const Segment> sends,
                          std::span<const Segment> receives) = 0;
  // In place, over all ranks, on device memory. The order of the sum is the transport's, the same in every run.
  virtual Status all_reduce_sum(backend::Stream& stream, std::span<float> values) = 0;
  // Memory on the device in which the kernels of all ranks reach each other's tensors, as long as those lie at the same
  // place on all of them; empty where there is none. It lives as long as this does. Collective, all ask for the same.
  virtual Result<std::span<std::byte>> make_window(std::size_t) { return std::span<std::byte>(); }
  // Rows straight into the peers' memory; all tensors lie in the window. No host waits for their counts.
  virtual Status push_rows(backend::Stream&, const RowPush&) {
    return internal_error("this transport has no window");
  }
  bool in_window(const void* start, std::size_t bytes) const {
    const auto* at = static_cast<const std::byte*>(start);
    return !window_.empty() && at >= window_.data() && at + bytes <= window_.data() + window_.size();
  }
  // At any time: an error that came up while the queued calls ran (a peer gone).
  virtual Status check() = 0;
  // Asks the other ranks, once a queued call has taken too long, who is still there: "nothing came from rank 1". Empty
  // where that is not known. Takes some seconds; the communicator is of no use afterwards.
  virtual std::string who_is_missing() { return {}; }
  virtual void abort(const std::string& why) = 0;
  // Before abort: kernels that are in peers' memory, or will be, do not write there any more.
  virtual void stop_pushes() {}

 protected:
  std::span<std::byte> window_;
};

// All of them at once, since to end one a driver may wait for what waits for another; null ones are left out. Where
// the driver does not come back within `most`, nothing in this process could end in order: a line, and exit code 5.
void abort_all(std::span<DeviceCommunicator* const> communicators, const std::string& why,
               std::chrono::milliseconds most = std::chrono::seconds(20));

}  // namespace lancet::comm
