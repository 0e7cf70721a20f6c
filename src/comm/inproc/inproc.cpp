// Ranks as threads of one process. Every call enters the rendezvous (rendezvous.h), moves its share of the data between
// the callers' buffers and leaves. run_inproc starts the threads and returns the first failure.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <thread>

#include "../operation.h"
#include "lancet/base/check.h"
#include "rendezvous.h"

namespace lancet::comm {
namespace inproc {
namespace {

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
    const Call call{.operation = Operation::send_receive, .sends = sends, .receives = receives};
    LANCET_TRY(rendezvous_->enter(rank_, call, timeout_));
    for (int peer = 0; peer < size(); ++peer) {
      std::size_t next_send = 0, next_receive = 0;
      const auto sent = rendezvous_->calls()[static_cast<std::size_t>(peer)].sends;
      while (const Segment* to = next_of_peer(receives, peer, next_receive)) {
        const Segment* from = next_of_peer(sent, rank_, next_send);
        if (to->data != from->data) std::memcpy(to->data, from->data, to->bytes);
      }
    }
    rendezvous_->leave();
    return {};
  }

  // Each rank sums its slice of all buffers and writes the sum to all of them; no rank touches another's slice.
  Status all_reduce_sum(std::span<float> values) override {
    LANCET_TRY(rendezvous_->enter(rank_, {.operation = Operation::all_reduce_sum, .values = values}, timeout_));
    const auto ranks = static_cast<std::size_t>(size()), me = static_cast<std::size_t>(rank_);
    const std::size_t slice = ((values.size() + ranks - 1) / ranks + 15) / 16 * 16;  // whole cache lines
    const std::size_t start = std::min(me * slice, values.size()), count = std::min(slice, values.size() - start);
    parts_.resize(ranks);
    for (std::size_t r = 0; r < ranks; ++r) parts_[r] = rendezvous_->calls()[r].values.data() + start;
    if (count > 0) {
      sum_in_rank_order(parts_, values.data() + start, count);
      for (std::size_t r = 0; r < ranks; ++r)
        if (r != me)
          std::memcpy(rendezvous_->calls()[r].values.data() + start, values.data() + start, count * sizeof(float));
    }
    rendezvous_->leave();
    return {};
  }

  Status broadcast(std::span<std::byte> bytes, int root) override {
    if (root < 0 || root >= size())
      return internal_error(fmt::format("broadcast: root is rank {}, expected 0 to {}", root, size() - 1));
    LANCET_TRY(rendezvous_->enter(rank_, {.operation = Operation::broadcast, .bytes = bytes, .root = root}, timeout_));
    if (rank_ != root && !bytes.empty())
      std::memcpy(bytes.data(), rendezvous_->calls()[static_cast<std::size_t>(root)].bytes.data(), bytes.size());
    rendezvous_->leave();
    return {};
  }

  Status barrier() override {
    LANCET_TRY(rendezvous_->enter(rank_, {.operation = Operation::barrier}, timeout_));
    rendezvous_->leave();
    return {};
  }

  Result<std::unique_ptr<Communicator>> split(std::span<const int> members) override {
    LANCET_TRY(check_members(members, rank_, size()));
    LANCET_TRY(rendezvous_->enter(rank_, {.operation = Operation::split, .members = members}, timeout_));
    auto group = rendezvous_->group_of(rank_);
    rendezvous_->leave();
    const auto place = static_cast<int>(std::ranges::lower_bound(members, rank_) - members.begin());
    return std::unique_ptr<Communicator>(new InprocCommunicator(std::move(group), place, timeout_));
  }

  void abort(const std::string& why) override { rendezvous_->run().abort(why); }
  void set_timeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  void set_name(const std::string& name) override { rendezvous_->set_name(name); }

 private:
  std::shared_ptr<Rendezvous> rendezvous_;
  int rank_;
  std::chrono::milliseconds timeout_;
  std::vector<const float*> parts_;
};

// Keeps the first failure in time; later ones are its consequences.
class FirstFailure {
 public:
  void record(Error error, std::exception_ptr exception) {
    std::lock_guard lock(mutex_);
    if (failed_) return;
    failed_ = true;
    error_ = std::move(error);
    exception_ = std::move(exception);
  }
  Status result() {
    if (exception_) std::rethrow_exception(exception_);
    if (failed_) return error_;
    return {};
  }

 private:
  std::mutex mutex_;
  bool failed_ = false;
  Error error_;
  std::exception_ptr exception_;
};

void run_rank(Run& run, std::shared_ptr<Rendezvous> rendezvous, int rank, std::chrono::milliseconds timeout,
              const std::function<Status(Communicator&)>& body, FirstFailure& first) {
  try {
    InprocCommunicator communicator(std::move(rendezvous), rank, timeout);
    if (Status status = body(communicator); !status) {
      first.record(status.error(), nullptr);
      run.abort(fmt::format("rank {} failed: {}", rank, status.error().message));
    }
  } catch (const std::exception& e) {
    first.record({}, std::current_exception());
    run.abort(fmt::format("rank {} failed: {}", rank, e.what()));
  } catch (...) {
    first.record({}, std::current_exception());
    run.abort(fmt::format("rank {} failed", rank));
  }
  run.leave(rank);
}

}  // namespace
}  // namespace inproc

Status run_inproc(int ranks, const std::function<Status(Communicator&)>& body, std::chrono::milliseconds timeout) {
  LANCET_CHECK(ranks >= 1, "run_inproc: {} ranks, expected at least 1", ranks);
  const auto run = std::make_shared<inproc::Run>(ranks);
  std::vector<int> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  const auto rendezvous = std::make_shared<inproc::Rendezvous>(run, std::move(all));
  run->add(rendezvous);
  inproc::FirstFailure first;
  {
    std::vector<std::jthread> threads;
    threads.reserve(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] { inproc::run_rank(*run, rendezvous, rank, timeout, body, first); });
  }
  return first.result();
}

}  // namespace lancet::comm
