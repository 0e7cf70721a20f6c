// WindowRows: rows of synthetic tokens for all-to-alls through windows, the same number from each rank to each expert.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>

#include "lancet/comm/device_communicator.h"
#include "lancet/runtime/block.h"

namespace lancet::profiler {

class WindowRows {
 public:
  // Makes a window for messages of up to `largest` bytes, to all other ranks together, with `experts` experts on each
  // rank. Null on all ranks if they have no windows. Collective.
  static Result<std::unique_ptr<WindowRows>> open(backend::Device& device, comm::DeviceCommunicator& comm,
                                                  std::int64_t experts, std::size_t largest);

  // The arguments of an all-to-all of `bytes` bytes. Enqueues the copy of its counts to the window; an earlier
  // all-to-all must have ended.
  Result<comm::RowPush> rows_of(backend::Stream& stream, std::size_t bytes);
  // Enqueues a copy of the counts to the host and waits for it, as kernels do that need the counts on the host. Polls
  // watch() meanwhile and returns its error.
  Status fetch_counts(backend::Stream& stream, const std::function<Status()>& watch);

 private:
  WindowRows(comm::DeviceCommunicator& comm, std::int64_t experts) : comm_(comm), local_(experts) {}
  std::int64_t ranks() const { return comm_.size(); }
  std::int64_t experts() const { return ranks() * local_; }
  std::int64_t rows_a_segment(std::size_t bytes) const;
  std::size_t count_bytes() const;

  comm::DeviceCommunicator& comm_;
  const std::int64_t local_;
  std::span<std::byte> window_;
  runtime::Block counts_, fetched_;  // page-locked; fetched_ has a flag after the counts
};

}  // namespace lancet::profiler
