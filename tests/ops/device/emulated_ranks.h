// Ranks whose kernels run together on the host, and the windows by which they reach each other's memory.
#pragma once
#include <cstdint>
#include <vector>

#include "emulated_kernels.h"
#include "lancet/comm/peers.h"
#include "ops/device/launch.h"

namespace lancet::test {

// Keeps launches for Ranks::run().
class RankStream final : public HostStream {
 public:
  explicit RankStream(ops::device::emulated::LaunchQueue& queue) : queue_(queue) {}
  void* native() override { return static_cast<ops::device::emulated::Launches*>(&queue_); }

 private:
  ops::device::emulated::LaunchQueue& queue_;
};

// The windows of ranks in the memory of one process. The signals of each are at the same offset in its window.
class HostWindows {
 public:
  HostWindows(std::vector<std::byte*> starts, std::size_t signals, int blocks)
      : starts_(std::move(starts)), signals_(signals), blocks_(blocks), stop_(starts_.size(), 0) {}
  int ranks() const { return int(starts_.size()); }
  std::uint32_t* signals(int rank) const {
    return reinterpret_cast<std::uint32_t*>(starts_[std::size_t(rank)] + signals_);
  }
  std::uint32_t& stop(int rank) { return stop_[std::size_t(rank)]; }
  comm::Window of(int rank, std::uint32_t generation) { return {peers(rank), {signals(rank)}, blocks_, generation}; }
  comm::Peers peers(int rank) { return {starts_[std::size_t(rank)], starts_.data(), rank, ranks(), &stop(rank)}; }

 private:
  std::vector<std::byte*> starts_;
  std::size_t signals_;
  int blocks_;
  std::vector<std::uint32_t> stop_;
};

}  // namespace lancet::test
