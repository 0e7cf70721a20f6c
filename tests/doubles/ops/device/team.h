// A block of a device kernel on the host, for tests without a GPU. Each GPU thread of the block is a fiber, a host
// stack of its own (fiber.h). In a turn of the block every ready fiber runs, in a shuffled order, until it ends or
// reaches a barrier, a wait for a word of memory, or the writing of one, and switches back. Then each barrier at which
// all threads of the block, or of the warp, wait is opened. A kernel that lacks a barrier therefore gives wrong results
// for some order of the fibers. InternalError: a thread ends while others wait at a barrier, or the block has written
// beyond its shared memory. All blocks share one host thread, so atomics are plain additions.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <utility>
#include <vector>

#include "fiber.h"
#include "lancet/base/check.h"

namespace lancet::ops::device::emulated {

// The shared memory of a block on a GPU of compute capability 9.0, less the scratch of its collectives.
inline constexpr std::size_t most_shared_bytes = 227 * 1024 - collective_scratch_bytes;

// The random order of fibers, blocks and ranks.
class Order {
 public:
  explicit Order(std::uint64_t seed) : state_(seed) {}
  // The next random number, in [0, n).
  std::size_t below(std::size_t n) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return std::size_t((state_ >> 33) % n);
  }
  template <class T>
  void shuffle(std::vector<T>& items) {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  std::uint64_t state_;
};

// What a thread waits for: that *word reaches `value`, counted modulo 2^32, or that *stop is not 0 (stop may be null).
struct WordWait {
  const std::uint32_t* word = nullptr;
  std::uint32_t value = 0;
  const std::uint32_t* stop = nullptr;
  bool reached() const { return std::int32_t(*word - value) >= 0; }
  bool over() const { return reached() || (stop && *stop != 0); }
};

class Team {
 public:
  using Body = std::function<void(Team&, int thread)>;

  // blocks: of the launch. body and order outlive the team.
  Team(std::int64_t blocks, int threads, std::size_t shared, const Body& body, Order& order)
      : blocks_(blocks),
        threads_(std::size_t(threads)),
        body_(body),
        order_(order),
        shared_bytes_(shared),
        shared_((shared + guard_bytes) / sizeof(Unit) + 1),
        slots_(2 * std::size_t(threads)) {
    LANCET_CHECK(threads > 0 && threads <= 1024 && threads % 32 == 0, "a block of {} threads", threads);
    LANCET_CHECK(shared <= most_shared_bytes, "{} bytes of shared memory, a block has {}", shared, most_shared_bytes);
  }

  // Calls of the block's threads.
  std::int64_t block() const { return block_; }
  std::int64_t blocks() const { return blocks_; }
  void* shared() { return shared_.data(); }
  std::uint64_t* scratch() { return scratch_; }
  void sync(int thread) { suspend(thread, State::at_block_barrier); }
  void sync_warp(int thread) { suspend(thread, State::at_warp_barrier); }
  // Lets other threads, blocks and ranks run.
  void yield(int thread) { suspend(thread, State::ready); }
  // Returns whether the word has reached the value.
  bool wait(int thread, const WordWait& wait) {
    threads_[std::size_t(thread)].waits_for = wait;
    suspend(thread, State::at_word);
    return wait.reached();
  }
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

  // Calls of the scheduler.
  void start(std::int64_t block) {
    block_ = block;
    std::memset(static_cast<void*>(shared_.data()), 0xff,
                shared_.size() * sizeof(Unit));  // NaN: shared memory is not initialised on a GPU
    for (std::uint64_t& word : scratch_) word = ~std::uint64_t{0};
    for (Thread& thread : threads_) {
      thread.state = State::ready;
      thread.turn = 0;
      thread.fiber.start(&Team::enter);
    }
  }
  bool ended() const {
    for (const Thread& thread : threads_)
      if (thread.state != State::ended) return false;
    return true;
  }
  // Runs the ready fibers once. False: all threads that have not ended wait for words, or for threads that do.
  bool turn() {
    current = this;
    std::vector<int> ready;
    bool at_word = false;
    for (std::size_t i = 0; i < threads_.size(); ++i) {
      Thread& thread = threads_[i];
      if (thread.state == State::at_word && thread.waits_for.over()) thread.state = State::ready;
      if (thread.state == State::ready) ready.push_back(int(i));
      at_word = at_word || thread.state == State::at_word;
    }
    LANCET_CHECK(!ready.empty() || at_word, "block {}: threads wait at a barrier that others never reach", block_);
    order_.shuffle(ready);
    for (int thread : ready) {
      running_ = thread;
      Fiber::change(scheduler_, threads_[std::size_t(thread)].fiber);
      if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    }
    open_barriers();
    if (ended()) check_guard();
    return !ready.empty();
  }
  // The words that threads wait for.
  std::vector<WordWait> waits() const {
    std::vector<WordWait> found;
    for (const Thread& thread : threads_)
      if (thread.state == State::at_word) found.push_back(thread.waits_for);
    return found;
  }

 private:
  enum class State : std::uint8_t { ready, at_block_barrier, at_warp_barrier, at_word, ended };
  struct Thread {
    Fiber fiber;
    State state = State::ended;
    int turn = 0;
    WordWait waits_for;
  };
  struct alignas(16) Unit {
    std::byte bytes[16];
  };
  static constexpr std::size_t guard_bytes = 256;

  void check_guard() const {
    const std::byte* guard = reinterpret_cast<const std::byte*>(shared_.data()) + shared_bytes_;
    for (std::size_t i = 0; i < guard_bytes; ++i)
      LANCET_CHECK(guard[i] == std::byte{0xff}, "block {}: written {} bytes beyond its shared memory", block_, i);
  }

  // Opens the barriers at which all threads of the block, or of a warp, have arrived.
  void open_barriers() {
    open(0, threads_.size(), State::at_block_barrier);
    for (std::size_t w = 0; w < threads_.size(); w += 32) open(w, w + 32, State::at_warp_barrier);
  }
  void open(std::size_t first, std::size_t last, State barrier) {
    for (std::size_t i = first; i < last; ++i)
      if (threads_[i].state != barrier) return;
    for (std::size_t i = first; i < last; ++i) threads_[i].state = State::ready;
  }

  void suspend(int thread, State state) {
    Thread& self = threads_[std::size_t(thread)];
    self.state = state;
    Fiber::change(self.fiber, scheduler_);
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
  const std::int64_t blocks_;
  std::vector<Thread> threads_;
  const Body& body_;
  Order& order_;
  const std::size_t shared_bytes_;
  std::vector<Unit> shared_;
  std::vector<std::uint64_t> slots_;
  std::uint64_t scratch_[collective_scratch_bytes / sizeof(std::uint64_t)];
  std::int64_t block_ = 0;
  Fiber scheduler_;  // the caller's own stack
  int running_ = 0;
  std::exception_ptr failure_;
};

}  // namespace lancet::ops::device::emulated
