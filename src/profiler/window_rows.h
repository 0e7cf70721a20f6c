// Rows of made-up tokens for exchanges through windows, as many from each rank to each expert.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>

#include "lancet/comm/device_communicator.h"
#include "lancet/runtime/block.h"

namespace lancet::profiler {

class WindowRows {
 public:
  // For messages of up to `largest` bytes, to all other ranks together, to `experts` experts of each rank. Null: the
  // ranks have no windows, none of them. Collective.
  static Result<std::unique_ptr<WindowRows>> open(backend::Device& device, comm::DeviceCommunicator& comm,
                                                  std::int64_t experts, std::size_t largest);

  // The exchange of so many bytes. Puts its counts where it reads them, once the stream is that far; what was put there
  // before must have ended.
  Result<comm::RowPush> rows_of(backend::Stream& stream, std::size_t bytes);
  // Puts a copy of the counts to the host on the stream, and waits until it is there, as kernels do whose host must
  // know them. Error: watch()'s, which is asked meanwhile.
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
  runtime::Block counts_, fetched_;  // page-locked; behind what was fetched lies a flag
};

}  // namespace lancet::profiler
