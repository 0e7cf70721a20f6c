// A thread that sleeps until a neighbour ends, and from then on looks whether the progress thread still goes round. A
// rank whose peer has ended may be held inside MPI: Open MPI's TCP tells the launcher of the lost connection and waits
// for an answer, which does not come while the launcher ends the job. Then somebody else must say whom the streams miss.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "neighbours.h"

namespace lancet::comm::mpi {

// Rounds of a thread that calls MPI: odd while it is inside. One thread writes.
class Rounds {
 public:
  void enter() { count_.store(count_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  void leave() { enter(); }
  std::uint64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> count_ = 0;
};

class NeighbourWatch {
 public:
  // on_stuck(ended): called, again and again, while a neighbour has ended and the same round has stayed inside MPI for
  // `patience` or longer. All three outlive the watch. Starts no thread where there are no neighbours.
  NeighbourWatch(const Neighbours& neighbours, const Rounds& rounds, std::chrono::milliseconds patience,
                 std::function<void(const std::vector<int>&)> on_stuck);
  ~NeighbourWatch();
  NeighbourWatch(const NeighbourWatch&) = delete;

 private:
  void run() const;

  const Neighbours& neighbours_;
  const Rounds& rounds_;
  const std::chrono::milliseconds patience_;
  const std::function<void(const std::vector<int>&)> on_stuck_;
  int stop_ = -1;  // an event; -1: none could be had, and nothing is watched
  std::thread thread_;
};

}  // namespace lancet::comm::mpi
