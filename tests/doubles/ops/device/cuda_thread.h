// A thread of a block that emulated.h runs on the host. In the tests this header takes the place of
// src/ops/device/cuda_thread.h.
#pragma once
#include <numeric>
#include <typeinfo>

#include "emulated.h"

#define LANCET_DEVICE inline

namespace lancet::ops::device {

class Thread {
 public:
  Thread(emulated::Team& team, int thread) : team_(&team), thread_(thread) {}

  std::int64_t index() const { return team_->block(); }
  std::int64_t count() const { return team_->blocks(); }
  int thread() const { return thread_; }

  void sync() { team_->sync(thread_); }
  void sync_warp() { team_->sync_warp(thread_); }

  template <class T>
  T shuffle(T v, int from) {
    return team_->shuffle(thread_, v, from);
  }
  template <class T>
  T shuffle_xor(T v, int distance) {
    return team_->shuffle(thread_, v, thread_ % 32 ^ distance);
  }
  template <class T>
  T shuffle_up(T v, int distance) {
    return team_->shuffle(thread_, v, thread_ % 32 >= distance ? thread_ % 32 - distance : thread_ % 32);
  }
  int warp_count(bool v) {
    const std::uint64_t* given = gather(v ? 1 : 0);
    return int(std::accumulate(given, given + 32, std::uint64_t{0}));
  }

  // The words that the 32 threads of the warp give. It exists only here, to emulate single GPU instructions on a warp.
  const std::uint64_t* gather(std::uint64_t v) { return team_->gather(thread_, v); }

  int atomic_add(std::int32_t* at, std::int32_t v) {
    const int before = *at;
    *at += v;
    return before;
  }
  void atomic_max(std::int32_t* at, std::int32_t v) { *at = v > *at ? v : *at; }

  // Writes of words let others run, so that a word that is written before the data which it announces is noticed.
  void set_word(std::uint32_t* at, std::uint32_t v) {
    *at = v;
    team_->yield(thread_);
  }
  void add_word(std::uint32_t* at, std::uint32_t v) {
    *at += v;
    team_->yield(thread_);
  }
  std::uint32_t load_word(const std::uint32_t* at) { return *at; }
  bool wait_word(const std::uint32_t* at, std::uint32_t value, const std::uint32_t* stop) {
    return team_->wait(thread_, {at, value, stop});
  }

  void* shared_memory() const { return team_->shared(); }
  std::uint64_t* collective_scratch() const { return team_->scratch(); }

 private:
  emulated::Team* team_;
  int thread_;
};

template <class T>
void store_at_once(T* to, const T& value) {
  LANCET_CHECK(reinterpret_cast<std::uintptr_t>(to) % sizeof(T) == 0, "a store of {} bytes, not aligned", sizeof(T));
  *to = value;
}

// A stream with a place for launches keeps them there (RankStream: for Ranks::run()); others run them at once.
template <class BlockType, class F>
Status launch_blocks(backend::Stream& stream, std::int64_t blocks, const F& kernel, std::size_t shared) {
  const auto body = [kernel](emulated::Team& team, int thread) {
    BlockType block(team, thread);
    kernel(block);
  };
  emulated::Launch launch{blocks, F::threads, shared, cluster<F>(), body, sizeof(F), typeid(F).name()};
  if (auto* launches = static_cast<emulated::Launches*>(stream.native()))
    launches->add(std::move(launch));
  else
    emulated::run(std::move(launch));
  return {};
}

}  // namespace lancet::ops::device
