// The rendezvous of ranks that are threads of one process.
//
// Every operation has three phases: all ranks publish their calls (enter), each rank moves its share of the data
// directly between the callers' buffers, and all leave. The last rank to enter compares the calls, so a mismatch is
// found before any byte moves, and every rank gets the same error.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "../operation.h"
#include "lancet/comm/communicator.h"

namespace lancet::comm::inproc {

struct Call {
  Operation operation = Operation::barrier;
  std::span<const Segment> sends = {}, receives = {};  // send and receive
  std::span<float> values = {};                        // all_reduce_sum
  std::span<std::byte> bytes = {};                     // broadcast
  int root = 0;                                        // broadcast
  std::span<const int> members = {};                   // split
};

class Rendezvous;

// State shared by all rendezvous of one run_inproc: the ranks that have ended, and the reason of an abort.
class Run {
 public:
  explicit Run(int size) : left_(static_cast<std::size_t>(size), false) {}
  void add(const std::shared_ptr<Rendezvous>& rendezvous);
  void abort(const std::string& why);
  void leave(int rank);  // the rank's body has returned
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  std::string why() const;
  std::vector<int> left_among(const std::vector<int>& ranks) const;
  std::size_t size() const { return left_.size(); }

 private:
  void wake_all();
  mutable std::mutex mutex_;
  std::atomic<bool> aborted_ = false;
  std::string why_;
  std::vector<bool> left_;
  std::vector<std::weak_ptr<Rendezvous>> rendezvous_points_;
};

class Rendezvous {
 public:
  // ranks: those that meet here, by their numbers in the run.
  Rendezvous(std::shared_ptr<Run> run, std::vector<int> ranks)
      : run_(std::move(run)), ranks_(std::move(ranks)), calls_(ranks_.size()), arrived_(ranks_.size(), false) {}
  int size() const { return static_cast<int>(ranks_.size()); }
  Run& run() { return *run_; }

  // `rank` counts from 0 within this rendezvous. Waits until all ranks have entered with matching calls. After success
  // calls() may be read and leave() must follow; after an error the rendezvous stays broken.
  Status enter(int rank, const Call& call, std::chrono::milliseconds timeout);
  void leave();  // waits until all ranks have moved their share; after it the callers own their buffers again
  const std::vector<Call>& calls() const { return calls_; }
  // Between enter and leave of Operation::split: the rendezvous of the rank's group, the same for all its members.
  std::shared_ptr<Rendezvous> group_of(int rank);
  void wake();
  void set_name(const std::string& name);

 private:
  Status wait_for_others(std::unique_lock<std::mutex>& lock, int rank, std::chrono::milliseconds timeout);
  Status match() const;
  Status match_send_receive() const;
  Status match_groups() const;
  void make_groups();
  int number(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }  // in the run
  std::vector<int> missing() const;                                              // by their numbers in the run
  std::string describe(int rank) const;
  Error fail(Error error);

  std::shared_ptr<Run> run_;
  const std::vector<int> ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string name_ = "world";
  std::vector<Call> calls_;
  std::vector<bool> arrived_;
  int arrived_count_ = 0, left_count_ = 0;
  std::uint64_t turns_ = 0;  // odd while data moves
  bool broken_ = false;
  Error error_;
  std::vector<std::shared_ptr<Rendezvous>> groups_;  // of the last split, by rank
  int splits_ = 0;
};

}  // namespace lancet::comm::inproc
