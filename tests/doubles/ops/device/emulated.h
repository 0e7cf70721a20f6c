// Runs a device kernel on one host thread, for tests without a GPU.
//
// Blocks run one after the other, in a shuffled order. Each GPU thread of a block is a fiber, a host stack of its own
// (fiber.h). The scheduler (Team::run_block) switches to every ready fiber, in a shuffled order; a fiber runs until it
// ends or reaches a barrier, and switches back. Then each barrier at which all threads of the block, or of the warp,
// wait is opened, and the next round begins. A kernel that lacks a barrier therefore gives wrong results for some
// order_seed. InternalError: a thread ends while others wait at a barrier, or the block has written beyond its shared
// memory. All threads of a block share the host thread, so atomics are plain additions.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <utility>
#include <vector>

#include "lancet/base/check.h"
#include "fiber.h"

namespace lancet::ops::device::emulated {

// The seed of the order of threads and blocks. Tests vary it and expect the same bits.
inline thread_local std::uint64_t order_seed = 1;

// The shared memory of a block on a GPU of compute capability 9.0, less the scratch of its collectives.
inline constexpr std::size_t most_shared_bytes = 227 * 1024 - collective_scratch_bytes;

class Team {
 public:
  using Body = std::function<void(Team&, int thread)>;

  Team(int threads, std::size_t shared, Body body)
      : threads_(std::size_t(threads)),
        body_(std::move(body)),
        shared_bytes_(shared),
        shared_((shared + guard_bytes) / sizeof(Unit) + 1),
        slots_(2 * std::size_t(threads)),
        random_(order_seed) {
    LANCET_CHECK(threads > 0 && threads <= 1024 && threads % 32 == 0, "a block of {} threads", threads);
    LANCET_CHECK(shared <= most_shared_bytes, "{} bytes of shared memory, a block has {}", shared, most_shared_bytes);
  }

  std::int64_t block() const { return block_; }
  std::int64_t blocks() const { return blocks_; }
  void* shared() { return shared_.data(); }
  std::uint64_t* scratch() { return scratch_; }

  void sync(int thread) { wait(thread, State::at_block_barrier); }
  void sync_warp(int thread) { wait(thread, State::at_warp_barrier); }

  // All threads of the warp give a word each; returns the 32 words. Two buffers alternate, as in Block, so the result
  // is valid until the thread's next call.
  const std::uint64_t* gather(int thread, std::uint64_t v) {
    Thread& self = threads_[std::size_t(thread)];
    std::uint64_t* slots = slots_.data() + (self.turn ^= 1) * std::int64_t(threads_.size());
    slots[thread] = v;
    sync_warp(thread);
    return slots + thread / 32 * 32;
  }
  // All threads of the warp give a value each; returns that of thread `from` of the warp.
  template <class T>
  T shuffle(int thread, T v, int from) {
    static_assert(sizeof(T) <= sizeof(std::uint64_t));
    std::uint64_t word = 0;
    std::memcpy(&word, &v, sizeof v);
    std::memcpy(static_cast<void*>(&v), gather(thread, word) + from % 32, sizeof v);
    return v;
  }

  void run(std::int64_t blocks) {
    blocks_ = blocks;
    std::vector<std::int64_t> order(static_cast<std::size_t>(blocks));
    for (std::size_t b = 0; b < order.size(); ++b) order[b] = std::int64_t(b);
    shuffle(order);
    for (std::int64_t b : order) run_block(b);
  }

  // The next random number, in [0, n).
  std::size_t random_below(std::size_t n) {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    return std::size_t((random_ >> 33) % n);
  }

 private:
  enum class State : std::uint8_t { ready, at_block_barrier, at_warp_barrier, ended };
  struct Thread {
    Fiber fiber;
    State state = State::ready;
    int turn = 0;
  };
  struct alignas(16) Unit {
    std::byte bytes[16];
  };
  static constexpr std::size_t guard_bytes = 256;

  template <class T>
  void shuffle(std::vector<T>& items) {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random_below(i)]);
  }

  void run_block(std::int64_t block) {
    block_ = block;
    current = this;
    std::memset(static_cast<void*>(shared_.data()), 0xff,
                shared_.size() * sizeof(Unit));  // NaN: shared memory is not initialised on a GPU
    for (std::uint64_t& word : scratch_) word = ~std::uint64_t{0};
    for (std::size_t i = 0; i < threads_.size(); ++i) start(int(i));
    while (true) {
      std::vector<int> ready;
      std::size_t ended = 0;
      for (std::size_t i = 0; i < threads_.size(); ++i) {
        if (threads_[i].state == State::ready) ready.push_back(int(i));
        ended += threads_[i].state == State::ended;
      }
      if (ended == threads_.size()) break;
      LANCET_CHECK(!ready.empty(), "block {}: threads wait at a barrier that others never reach", block);
      shuffle(ready);
      for (int thread : ready) {
        running_ = thread;
        Fiber::change(scheduler_, threads_[std::size_t(thread)].fiber);
        if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
      }
      release();
    }
    const std::byte* guard = reinterpret_cast<const std::byte*>(shared_.data()) + shared_bytes_;
    for (std::size_t i = 0; i < guard_bytes; ++i)
      LANCET_CHECK(guard[i] == std::byte{0xff}, "block {}: written {} bytes beyond its shared memory", block, i);
  }

  // Opens the barriers at which all threads of the block, or of a warp, have arrived.
  void release() {
    release(0, threads_.size(), State::at_block_barrier);
    for (std::size_t w = 0; w < threads_.size(); w += 32) release(w, w + 32, State::at_warp_barrier);
  }
  void release(std::size_t first, std::size_t last, State barrier) {
    for (std::size_t i = first; i < last; ++i)
      if (threads_[i].state != barrier) return;
    for (std::size_t i = first; i < last; ++i) threads_[i].state = State::ready;
  }

  void wait(int thread, State barrier) {
    Thread& self = threads_[std::size_t(thread)];
    self.state = barrier;
    Fiber::change(self.fiber, scheduler_);
  }

  void start(int thread) {
    Thread& self = threads_[std::size_t(thread)];
    self.state = State::ready;
    self.turn = 0;
    self.fiber.start(&Team::enter);
  }
  static void enter() {
    Team* team = current;
    const int thread = team->running_;
    Thread& self = team->threads_[std::size_t(thread)];
    try {
      team->body_(*team, thread);
    } catch (...) {
      team->failure_ = std::current_exception();
    }
    self.state = State::ended;
    Fiber::change(self.fiber, team->scheduler_);
  }

  static inline thread_local Team* current = nullptr;  // the team whose threads run
  std::vector<Thread> threads_;
  Body body_;
  std::size_t shared_bytes_;
  std::vector<Unit> shared_;
  std::vector<std::uint64_t> slots_;
  std::uint64_t scratch_[collective_scratch_bytes / sizeof(std::uint64_t)];
  std::uint64_t random_;
  std::int64_t block_ = 0, blocks_ = 0;
  Fiber scheduler_;  // the caller's own stack
  int running_ = 0;
  std::exception_ptr failure_;
};

inline void run(std::int64_t blocks, int threads, std::size_t shared, Team::Body body) {
  Team(threads, shared, std::move(body)).run(blocks);
}

}  // namespace lancet::ops::device::emulated
