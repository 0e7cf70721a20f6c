// Every operation has three phases: all ranks publish their calls (enter), each rank moves its share of the data
// directly between the callers' buffers, and all leave. The last rank to enter compares the calls, so a mismatch is
// found before any byte moves, and every rank gets the same error.
//
// `turns_` counts phases: it is even while ranks enter and odd while data moves. A waiting rank wakes when `turns_`
// changes, when the rendezvous is broken, on an abort of the run, when a missing rank has ended, or at its deadline.
// The first rank to detect a failure stores the error. One mutex guards a run and all its rendezvous.
#include "doubles/inproc.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "comm/operation.h"

namespace lancet::comm {
namespace {

struct Call {
  Operation operation = Operation::barrier;
  std::span<const Segment> sends = {}, receives = {};  // send_receive
  std::span<float> values = {};                        // all_reduce_sum
  std::span<std::byte> bytes = {};                     // broadcast
  int root = 0;                                        // broadcast
  std::span<const int> members = {};                   // split
};

class Rendezvous;

// What all rendezvous of one run_inproc share.
struct Run {
  std::mutex mutex;
  std::vector<bool> left;        // by rank: its body has returned
  std::optional<Error> failure;  // of an abort
  std::vector<std::weak_ptr<Rendezvous>> rendezvous;

  // The first reason is the cause.
  void abort(const std::string& why);
  void leave(int rank);

 private:
  void wake_all();
};

class Rendezvous {
 public:
  // ranks: those that meet here, by their numbers in the run.
  Rendezvous(std::shared_ptr<Run> run, std::vector<int> ranks)
      : run_(std::move(run)), ranks_(std::move(ranks)), calls_(ranks_.size()), arrived_(ranks_.size(), false) {}
  int size() const { return static_cast<int>(ranks_.size()); }
  Run& run() { return *run_; }
  void wake() { changed_.notify_all(); }

  // `rank` counts from 0 within this rendezvous. Waits until all ranks have entered with matching calls. After success
  // calls() may be read and leave() must follow; after an error the rendezvous stays broken.
  Status enter(int rank, const Call& call, std::chrono::milliseconds timeout) {
    std::unique_lock lock(run_->mutex);
    if (error_) return *error_;
    calls_[std::size_t(rank)] = call;
    arrived_[std::size_t(rank)] = true;
    if (++arrived_count_ < size()) return wait_for_others(lock, rank, timeout);
    if (run_->failure) return fail(*run_->failure);
    if (const Status matched = match(); !matched.ok()) return fail(matched.error());
    if (call.operation == Operation::split) make_groups();
    left_count_ = 0;
    ++turns_;
    changed_.notify_all();
    return {};
  }
  const std::vector<Call>& calls() const { return calls_; }
  // Between enter and leave of Operation::split: the rendezvous of the rank's group, the same for all its members.
  std::shared_ptr<Rendezvous> group_of(int rank) const { return groups_[std::size_t(rank)]; }
  // Waits until all ranks have moved their share; after it the callers own their buffers again. It has no timeout and
  // ignores aborts: between enter and leave the other ranks only copy memory, and the buffers must stay valid.
  void leave() {
    std::unique_lock lock(run_->mutex);
    if (++left_count_ < size()) return changed_.wait(lock, [this, turn = turns_] { return turns_ != turn; });
    arrived_.assign(arrived_.size(), false);
    arrived_count_ = 0;
    ++turns_;
    changed_.notify_all();
  }

 private:
  Status wait_for_others(std::unique_lock<std::mutex>& lock, int rank, std::chrono::milliseconds timeout) {
    const std::uint64_t turn = turns_;
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    for (;;) {
      if (turns_ != turn) return {};
      if (error_) return *error_;
      if (run_->failure) return fail(*run_->failure);
      std::vector<int> missing, gone;
      for (std::size_t r = 0; r < ranks_.size(); ++r)
        if (!arrived_[r]) missing.push_back(ranks_[r]);
      std::ranges::copy_if(missing, std::back_inserter(gone), [&](int r) { return bool(run_->left[std::size_t(r)]); });
      if (!gone.empty())
        return fail(communication_error(
            fmt::format("{}: waited for {}, which ended without it", describe(rank), list_ranks(gone))));
      if (std::chrono::steady_clock::now() >= deadline)
        return fail(communication_error(fmt::format("{}: timed out after {:.3g} s, waiting for {}", describe(rank),
                                                    double(timeout.count()) / 1e3, list_ranks(missing))));
      changed_.wait_until(lock, deadline);
    }
  }

  Status match() const {
    const Call& first = calls_[0];
    for (int r = 1; r < size(); ++r) {
      const Call& call = calls_[std::size_t(r)];
      if (call.operation != first.operation || call.values.size() != first.values.size() ||
          call.bytes.size() != first.bytes.size() || call.root != first.root)
        return communication_error(fmt::format(
            "the ranks' calls do not match: {}, but {}; all ranks must make the same calls in the same order",
            describe(0), describe(r)));
    }
    if (first.operation == Operation::send_receive) return match_send_receive();
    if (first.operation != Operation::split) return {};
    std::vector<std::vector<int>> members_of;
    for (const Call& call : calls_) members_of.emplace_back(call.members.begin(), call.members.end());
    return check_groups(members_of);
  }
  Status match_send_receive() const {
    for (int from = 0; from < size(); ++from)
      for (int to = 0; to < size(); ++to)
        for (std::size_t next_send = 0, next_receive = 0;;) {
          const Segment* send = next_of_peer(calls_[std::size_t(from)].sends, to, next_send);
          const Segment* receive = next_of_peer(calls_[std::size_t(to)].receives, from, next_receive);
          if (!send && !receive) break;
          const std::size_t sent = send ? send->bytes : 0, expected = receive ? receive->bytes : 0;
          if (sent != expected)
            return communication_error(
                fmt::format("send_receive: rank {} expects {} bytes from rank {}, which sends {}",
                            ranks_[std::size_t(to)], expected, ranks_[std::size_t(from)], sent));
        }
    return {};
  }

  // Makes each group once, at its first member, and gives it to all members.
  void make_groups() {
    groups_.assign(ranks_.size(), nullptr);
    for (const Call& call : calls_) {
      if (groups_[std::size_t(call.members.front())]) continue;
      std::vector<int> ranks;
      for (const int member : call.members) ranks.push_back(ranks_[std::size_t(member)]);
      const auto group = std::make_shared<Rendezvous>(run_, std::move(ranks));
      run_->rendezvous.push_back(group);
      for (const int member : call.members) groups_[std::size_t(member)] = group;
    }
  }

  std::string describe(int rank) const {
    const Call& call = calls_[std::size_t(rank)];
    return fmt::format("{} of {} bytes on {}", name(call.operation), call.values.size_bytes() + call.bytes.size(),
                       describe_rank(rank, ranks_, run_->left.size()));
  }
  Error fail(Error error) {
    error_ = std::move(error);
    changed_.notify_all();
    return *error_;
  }

  const std::shared_ptr<Run> run_;
  const std::vector<int> ranks_;
  std::condition_variable changed_;
  std::vector<Call> calls_;
  std::vector<bool> arrived_;
  int arrived_count_ = 0, left_count_ = 0;
  std::uint64_t turns_ = 0;
  std::optional<Error> error_;                       // why it is broken
  std::vector<std::shared_ptr<Rendezvous>> groups_;  // of the last split, by rank
};

void Run::abort(const std::string& why) {
  const std::lock_guard lock(mutex);
  if (!failure) failure = communication_error("communication was aborted: " + why);
  wake_all();
}

void Run::leave(int rank) {
  const std::lock_guard lock(mutex);
  left[std::size_t(rank)] = true;
  wake_all();
}

void Run::wake_all() {
  for (const auto& point : rendezvous)
    if (const auto alive = point.lock()) alive->wake();
}

class InprocCommunicator final : public Communicator {
 public:
  InprocCommunicator(std::shared_ptr<Rendezvous> rendezvous, int rank, std::chrono::milliseconds timeout)
      : rendezvous_(std::move(rendezvous)), rank_(rank), timeout_(timeout) {}
  int rank() const override { return rank_; }
  int size() const override { return rendezvous_->size(); }
  std::string transport() const override { return "inproc"; }

  Status send_receive(std::span<const Segment> sends, std::span<const Segment> receives) override {
    LANCET_TRY(check_peers(sends, "send", rank_, size()));
    LANCET_TRY(check_peers(receives, "receive", rank_, size()));
    return meet({.operation = Operation::send_receive, .sends = sends, .receives = receives}, [&](const auto& calls) {
      for (int peer = 0; peer < size(); ++peer) {
        std::size_t next_send = 0, next_receive = 0;
        while (const Segment* to = next_of_peer(receives, peer, next_receive)) {
          const Segment* from = next_of_peer(calls[std::size_t(peer)].sends, rank_, next_send);
          if (to->data != from->data) std::memcpy(to->data, from->data, to->bytes);
        }
      }
    });
  }
  // Each rank sums its slice of all buffers and writes the sum to all of them; no rank touches another's slice.
  Status all_reduce_sum(std::span<float> values) override {
    return meet({.operation = Operation::all_reduce_sum, .values = values}, [&](const auto& calls) {
      const auto ranks = std::size_t(size()), me = std::size_t(rank_);
      const std::size_t slice = ((values.size() + ranks - 1) / ranks + 15) / 16 * 16;  // whole cache lines
      const std::size_t start = std::min(me * slice, values.size()), count = std::min(slice, values.size() - start);
      if (count == 0) return;
      parts_.clear();
      for (const Call& call : calls) parts_.push_back(call.values.data() + start);
      sum_in_rank_order(parts_, values.data() + start, count);
      for (std::size_t r = 0; r < ranks; ++r)
        if (r != me) std::memcpy(calls[r].values.data() + start, values.data() + start, count * sizeof(float));
    });
  }
  Status broadcast(std::span<std::byte> bytes, int root) override {
    if (root < 0 || root >= size())
      return internal_error(fmt::format("broadcast: root is rank {}, expected 0 to {}", root, size() - 1));
    return meet({.operation = Operation::broadcast, .bytes = bytes, .root = root}, [&](const auto& calls) {
      if (rank_ != root && !bytes.empty())
        std::memcpy(bytes.data(), calls[std::size_t(root)].bytes.data(), bytes.size());
    });
  }
  Status barrier() override {
    return meet({.operation = Operation::barrier}, [](const auto&) {});
  }
  Result<std::unique_ptr<Communicator>> split(std::span<const int> members) override {
    LANCET_TRY(check_members(members, rank_, size()));
    std::shared_ptr<Rendezvous> group;
    LANCET_TRY(meet({.operation = Operation::split, .members = members},
                    [&](const auto&) { group = rendezvous_->group_of(rank_); }));
    const auto place = int(std::ranges::lower_bound(members, rank_) - members.begin());
    return std::unique_ptr<Communicator>(std::make_unique<InprocCommunicator>(std::move(group), place, timeout_));
  }
  void abort(const std::string& why) override { rendezvous_->run().abort(why); }
  void set_timeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }

 private:
  // Calls move(the calls of all ranks) while the ranks meet.
  template <class Move>
  Status meet(const Call& call, const Move& move) {
    LANCET_TRY(rendezvous_->enter(rank_, call, timeout_));
    move(rendezvous_->calls());
    rendezvous_->leave();
    return {};
  }

  const std::shared_ptr<Rendezvous> rendezvous_;
  const int rank_;
  std::chrono::milliseconds timeout_;
  std::vector<const float*> parts_;
};

// The first failure in time; later ones are its consequences.
struct FirstFailure {
  std::mutex mutex;
  Status status;
  std::exception_ptr exception;

  void record(const Status& found, std::exception_ptr thrown) {
    const std::lock_guard lock(mutex);
    if (!status.ok() || exception) return;
    status = found;
    exception = std::move(thrown);
  }
};

void run_rank(Run& run, std::shared_ptr<Rendezvous> rendezvous, int rank, std::chrono::milliseconds timeout,
              const std::function<Status(Communicator&)>& body, FirstFailure& first) {
  std::string why;
  try {
    InprocCommunicator communicator(std::move(rendezvous), rank, timeout);
    if (const Status status = body(communicator); !status.ok()) {
      first.record(status, nullptr);
      why = ": " + status.error().message;
    }
  } catch (const std::exception& error) {
    first.record({}, std::current_exception());
    why = fmt::format(": {}", error.what());
  } catch (...) {
    first.record({}, std::current_exception());
    why = " for an unknown reason";
  }
  if (!why.empty()) run.abort(fmt::format("rank {} failed{}", rank, why));
  run.leave(rank);
}

}  // namespace

Status run_inproc(int ranks, const std::function<Status(Communicator&)>& body, std::chrono::milliseconds timeout) {
  const auto run = std::make_shared<Run>();
  run->left.resize(std::size_t(ranks));
  std::vector<int> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  const auto world = std::make_shared<Rendezvous>(run, std::move(all));
  run->rendezvous.push_back(world);
  FirstFailure first;
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] { run_rank(*run, world, rank, timeout, body, first); });
  }
  if (first.exception) std::rethrow_exception(first.exception);
  return first.status;
}

}  // namespace lancet::comm
