// What the ranks of one lane say to each other when their tensors lie on devices: the calls put work on a stream.
//
// Threading, order and broken communicators: as communicator.h says. A call may block its caller (not the stream's
// earlier work), as the staged transport does; it never waits for work that is queued later.
#pragma once
#include <span>
#include <string>

#include "lancet/backend/device.h"
#include "lancet/comm/communicator.h"

namespace lancet::comm {

class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string transport() const = 0;  // "nccl", "mpi", "emulated"

  // As Communicator::exchange, on device memory.
  virtual Status exchange(backend::Stream& stream, std::span<const Segment> sends,
                          std::span<const Segment> receives) = 0;
  // In place, over all ranks, on device memory. The order of the sum is the transport's, the same in every run.
  virtual Status all_reduce_sum(backend::Stream& stream, std::span<float> values) = 0;
  // At any time: an error that came up while the queued calls ran (a peer gone).
  virtual Status check() = 0;
  // Asks the other ranks, once a queued call has taken too long, who is still there: "nothing came from rank 1". Empty
  // where that is not known. Takes some seconds; the communicator is of no use afterwards.
  virtual std::string who_is_missing() { return {}; }
  virtual void abort(const std::string& why) = 0;
};

}  // namespace lancet::comm
