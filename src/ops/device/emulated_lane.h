// The same lane on the host, for tests without a GPU.
#pragma once
#include "emulated.h"

#define LANCET_DEVICE inline

namespace lancet::ops::device {

class Lane {
 public:
  Lane(emulated::Team& team, int lane) : team_(&team), lane_(lane) {}

  std::int64_t index() const { return team_->block(); }
  std::int64_t count() const { return team_->blocks(); }
  int lane() const { return lane_; }

  void sync() { team_->sync(lane_); }
  void sync_warp() { team_->sync_warp(lane_); }

  template <class T>
  T shuffle(T v, int from) {
    return team_->exchange(lane_, v, from);
  }
  template <class T>
  T shuffle_xor(T v, int distance) {
    return team_->exchange(lane_, v, lane_ % 32 ^ distance);
  }
  template <class T>
  T shuffle_up(T v, int distance) {
    return team_->exchange(lane_, v, lane_ % 32 >= distance ? lane_ % 32 - distance : lane_ % 32);
  }

  // What the 32 lanes of the warp hand over; only here, for what a GPU does by one instruction.
  const std::uint64_t* gather(std::uint64_t v) { return team_->gather(lane_, v); }

  int atomic_add(std::int32_t* at, std::int32_t v) {
    const int before = *at;
    *at += v;
    return before;
  }
  void atomic_max(std::int32_t* at, std::int32_t v) { *at = v > *at ? v : *at; }

  void* shared_memory() const { return team_->shared(); }
  std::uint64_t* exchange() const { return team_->scratch(); }

 private:
  emulated::Team* team_;
  int lane_;
};

template <class BlockType, class F>
Status launch_blocks(backend::Stream&, std::int64_t blocks, const F& kernel, std::size_t shared) {
  emulated::run(blocks, F::lanes, shared, [&kernel](emulated::Team& team, int lane) {
    BlockType block(team, lane);
    kernel(block);
  });
  return {};
}

}  // namespace lancet::ops::device
