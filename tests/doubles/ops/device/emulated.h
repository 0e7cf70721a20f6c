// Runs device kernels on one host thread, for tests without a GPU: those of one rank, or of several ranks together.
//
// A rank runs its launches one after the other. Blocks of a launch take places in a shuffled order; a block keeps its
// place until it ends, and the others wait for one, as on a GPU. So blocks that wait can take the places of those which
// they wait for. The scheduler goes round the blocks that have a place, of all ranks, in a shuffled order, and gives
// each a few turns (team.h). So a kernel that waits for another block, or for another rank, sees them late and early;
// with one place, a block runs to its end before the next begins. InternalError, with the words that are waited for: no
// block of any rank can go on, because no block writes a word, or because the block that would write it has no place.
//
// It shows values and order, not when a GPU makes writes visible to others.
#pragma once
#include <algorithm>
#include <deque>
#include <list>
#include <memory>
#include <span>
#include <string>

#include <fmt/format.h>

#include "team.h"

namespace lancet::ops::device::emulated {

// The seed of the order of threads and blocks, and the places of a device that runs launches at once. Tests vary them
// and expect the same bits.
inline thread_local std::uint64_t order_seed = 1;
inline thread_local int places_at_once = 1;

struct Launch {
  std::int64_t blocks;
  int threads;
  std::size_t shared;
  int cluster;  // number of consecutive blocks that begin together
  Team::Body body;
  std::size_t parameter_bytes;  // of the kernel, which a launch on a GPU copies
  const char* kernel;           // its type, as the compiler names it
};

// Where a stream's native() puts launches.
class Launches {
 public:
  virtual ~Launches() = default;
  virtual void add(Launch launch) = 0;
};

// The launches of a rank, in order, and its blocks that have a place.
class LaunchQueue final : public Launches {
 public:
  // places: blocks that the rank can hold at the same time.
  LaunchQueue(int rank, int places, Order& order) : rank_(rank), places_(places), order_(order) {}

  void add(Launch launch) override {
    LANCET_CHECK(launch.cluster <= places_, "a cluster of {} blocks, {} fit", launch.cluster, places_);
    launches_.push_back(std::move(launch));
  }
  bool ended() const { return launches_.empty(); }
  // Gives free places to blocks, and begins the next launch once the one before has ended. False: nothing was to do.
  bool fill() {
    if (launches_.empty()) return false;
    const Launch& launch = launches_.front();
    if (!begun_) begin(launch);
    bool placed = false;
    for (; !waiting_.empty() && std::ssize(resident_) + launch.cluster <= places_; placed = true) {
      for (int i = 0; i < launch.cluster; ++i) place(launch, waiting_.back() * launch.cluster + i);
      waiting_.pop_back();
    }
    return placed;
  }
  std::vector<Team*> resident() const {
    std::vector<Team*> teams;
    for (const auto& team : resident_) teams.push_back(team.get());
    return teams;
  }
  // Frees the places of blocks that have ended, and ends the launch with the last of them.
  void leave() {
    for (auto it = resident_.begin(); it != resident_.end();)
      if ((*it)->ended())
        free_.splice(free_.end(), resident_, it++);
      else
        ++it;
    if (!begun_ || !resident_.empty() || !waiting_.empty()) return;
    free_.clear();
    launches_.pop_front();
    begun_ = false;
  }
  int rank() const { return rank_; }
  std::size_t without_place() const { return waiting_.size(); }

 private:
  void begin(const Launch& launch) {
    begun_ = true;
    waiting_.resize(static_cast<std::size_t>(launch.blocks / launch.cluster));
    for (std::size_t i = 0; i < waiting_.size(); ++i) waiting_[i] = std::int64_t(i);
    order_.shuffle(waiting_);
  }
  void place(const Launch& launch, std::int64_t block) {
    if (free_.empty())
      free_.push_back(std::make_unique<Team>(launch.blocks, launch.threads, launch.shared, launch.body, order_));
    resident_.splice(resident_.end(), free_, free_.begin());
    resident_.back()->start(block);
  }

  const int rank_, places_;
  Order& order_;
  std::deque<Launch> launches_;
  bool begun_ = false;                 // the first of them
  std::vector<std::int64_t> waiting_;  // its clusters without a place
  std::list<std::unique_ptr<Team>> resident_, free_;
};

class Ranks {
 public:
  // places: blocks that a rank can hold at the same time.
  Ranks(int ranks, int places) : order_(order_seed) {
    for (int i = 0; i < ranks; ++i) queues_.push_back(std::make_unique<LaunchQueue>(i, places, order_));
  }
  LaunchQueue& queue(int rank) { return *queues_[std::size_t(rank)]; }
  // Errors name words of these by number and rank, others by address.
  void name_words(int rank, std::span<const std::uint32_t> words) { named_.push_back({rank, words}); }

  // Runs what has been launched on all ranks, to the end.
  void run() {
    while (!std::ranges::all_of(queues_, [](const auto& queue) { return queue->ended(); }))
      LANCET_CHECK(turn(), "all fibers wait: {}", waits());
  }
  // Runs each block that has a place for a few turns. False: nothing could go on.
  bool turn() {
    bool moved = false;
    std::vector<Team*> teams;
    for (const auto& queue : queues_) {
      moved = queue->fill() || moved;
      for (Team* team : queue->resident()) teams.push_back(team);
    }
    order_.shuffle(teams);
    for (Team* team : teams) moved = run_some(*team) || moved;
    for (const auto& queue : queues_) queue->leave();
    return moved;
  }

 private:
  // Some turns, so that blocks and ranks run ahead of each other.
  bool run_some(Team& team) {
    bool moved = false;
    for (std::size_t left = 1 + order_.below(4); left > 0 && !team.ended() && team.turn(); --left) moved = true;
    return moved;
  }

  std::string name(const std::uint32_t* word) const {
    for (const auto& [rank, words] : named_)
      if (word >= words.data() && word < words.data() + words.size())
        return fmt::format("{} of rank {}", word - words.data(), rank);
    return fmt::format("{}", static_cast<const void*>(word));
  }
  std::string waits() const {
    std::vector<std::string> found;
    for (const auto& queue : queues_) {
      for (const Team* team : queue->resident())
        for (const WordWait& wait : team->waits()) {
          auto line = fmt::format("block {} of rank {} for word {} to reach {}, which is {}", team->block(),
                                  queue->rank(), name(wait.word), wait.value, *wait.word);
          if (std::find(found.begin(), found.end(), line) == found.end()) found.push_back(std::move(line));
        }
      if (queue->without_place() > 0)
        found.push_back(fmt::format("{} blocks of rank {} for a place", queue->without_place(), queue->rank()));
    }
    return fmt::format("{}", fmt::join(found, "; "));
  }

  struct Named {
    int rank;
    std::span<const std::uint32_t> words;
  };
  Order order_;
  std::vector<std::unique_ptr<LaunchQueue>> queues_;  // by rank
  std::vector<Named> named_;
};

// Runs a launch at once, on a rank of its own.
inline void run(Launch launch) {
  Ranks alone(1, std::max(places_at_once, launch.cluster));
  alone.queue(0).add(std::move(launch));
  alone.run();
}

}  // namespace lancet::ops::device::emulated
