// One mutex and one condition variable serve a rendezvous. `turns_` counts phases: it is even while ranks enter and odd
// while data moves. The last rank to enter checks that the calls match and makes it odd; the last to leave clears the
// arrivals and makes it even. A waiting rank wakes when `turns_` changes, when the rendezvous is broken, on an abort of
// the run, when a missing rank has ended, or at its deadline. The first rank to detect a failure stores the error.
#include "rendezvous.h"

#include <fmt/format.h>

namespace lancet::comm::inproc {

void Run::add(const std::shared_ptr<Rendezvous>& rendezvous) {
  std::lock_guard lock(mutex_);
  rendezvous_points_.push_back(rendezvous);
}

void Run::abort(const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    if (!aborted_.load(std::memory_order_relaxed)) why_ = why;  // the first reason is the cause
    aborted_.store(true, std::memory_order_release);
  }
  wake_all();
}

void Run::leave(int rank) {
  {
    std::lock_guard lock(mutex_);
    left_[static_cast<std::size_t>(rank)] = true;
  }
  wake_all();
}

std::string Run::why() const {
  std::lock_guard lock(mutex_);
  return why_;
}

std::vector<int> Run::left_among(const std::vector<int>& ranks) const {
  std::lock_guard lock(mutex_);
  std::vector<int> gone;
  for (int rank : ranks)
    if (left_[static_cast<std::size_t>(rank)]) gone.push_back(rank);
  return gone;
}

void Run::wake_all() {
  // Woken without holding mutex_, because a rendezvous queries the run while it holds its own mutex.
  std::vector<std::shared_ptr<Rendezvous>> sleeping;
  {
    std::lock_guard lock(mutex_);
    for (const auto& rendezvous : rendezvous_points_)
      if (auto alive = rendezvous.lock()) sleeping.push_back(std::move(alive));
  }
  for (const auto& rendezvous : sleeping) rendezvous->wake();
}

void Rendezvous::wake() {
  std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void Rendezvous::set_name(const std::string& name) {
  std::lock_guard lock(mutex_);
  name_ = name;
}

Status Rendezvous::enter(int rank, const Call& call, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (broken_) return error_;
  calls_[static_cast<std::size_t>(rank)] = call;
  arrived_[static_cast<std::size_t>(rank)] = true;
  if (++arrived_count_ < size()) return wait_for_others(lock, rank, timeout);
  if (run_->aborted()) return fail(communication_error("communication was aborted: " + run_->why()));
  if (Status matched = match(); !matched) return fail(std::move(matched).error());
  if (call.operation == Operation::split) make_groups();
  left_count_ = 0;
  ++turns_;
  changed_.notify_all();
  return {};
}

Status Rendezvous::wait_for_others(std::unique_lock<std::mutex>& lock, int rank, std::chrono::milliseconds timeout) {
  const std::uint64_t turn = turns_;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    if (turns_ != turn) return {};
    if (broken_) return error_;
    if (run_->aborted()) return fail(communication_error("communication was aborted: " + run_->why()));
    if (auto gone = run_->left_among(missing()); !gone.empty())
      return fail(communication_error(
          fmt::format("{}: waited for {}, which ended without it", describe(rank), list_ranks(gone))));
    if (std::chrono::steady_clock::now() >= deadline)
      return fail(communication_error(fmt::format("{}: timed out after {:.3g} s, waiting for {}", describe(rank),
                                                  static_cast<double>(timeout.count()) / 1e3, list_ranks(missing()))));
    changed_.wait_until(lock, deadline);
  }
}

// Has no timeout and ignores aborts: between enter and leave the other ranks only copy memory, and the buffers must
// stay valid until they are done.
void Rendezvous::leave() {
  std::unique_lock lock(mutex_);
  if (++left_count_ < size()) {
    const std::uint64_t turn = turns_;
    changed_.wait(lock, [&] { return turns_ != turn; });
    return;
  }
  arrived_.assign(arrived_.size(), false);
  arrived_count_ = 0;
  ++turns_;
  changed_.notify_all();
}

std::shared_ptr<Rendezvous> Rendezvous::group_of(int rank) {
  std::lock_guard lock(mutex_);
  return groups_[static_cast<std::size_t>(rank)];
}

// Makes each group once, at its first member, and gives it to all members.
void Rendezvous::make_groups() {
  const std::string name = fmt::format("{}.{}", name_, ++splits_);
  groups_.assign(ranks_.size(), nullptr);
  for (const Call& call : calls_) {
    if (groups_[static_cast<std::size_t>(call.members.front())]) continue;
    std::vector<int> ranks;
    for (const int member : call.members) ranks.push_back(number(member));
    const auto group = std::make_shared<Rendezvous>(run_, std::move(ranks));
    group->name_ = name;
    run_->add(group);
    for (const int member : call.members) groups_[static_cast<std::size_t>(member)] = group;
  }
}

Status Rendezvous::match() const {
  const Call& first = calls_[0];
  for (int r = 1; r < size(); ++r) {
    const Call& call = calls_[static_cast<std::size_t>(r)];
    if (call.operation != first.operation || call.values.size() != first.values.size() ||
        call.bytes.size() != first.bytes.size() || call.root != first.root)
      return communication_error(
          fmt::format("the ranks' calls do not match: {}, but {}; all ranks must make the same calls in the same order",
                      describe(0), describe(r)));
  }
  if (first.operation == Operation::send_receive) return match_send_receive();
  return first.operation == Operation::split ? match_groups() : Status{};
}

Status Rendezvous::match_groups() const {
  std::vector<std::vector<int>> members_of;
  for (const Call& call : calls_) members_of.emplace_back(call.members.begin(), call.members.end());
  return check_groups(members_of);
}

Status Rendezvous::match_send_receive() const {
  for (int from = 0; from < size(); ++from) {
    for (int to = 0; to < size(); ++to) {
      std::size_t next_send = 0, next_receive = 0;
      while (true) {
        const Segment* send = next_of_peer(calls_[static_cast<std::size_t>(from)].sends, to, next_send);
        const Segment* receive = next_of_peer(calls_[static_cast<std::size_t>(to)].receives, from, next_receive);
        if (!send && !receive) break;
        const std::size_t sent = send ? send->bytes : 0, expected = receive ? receive->bytes : 0;
        if (sent != expected)
          return communication_error(
              fmt::format("send_receive on \"{}\": rank {} expects {} bytes from rank {}, which sends {}", name_,
                          number(to), expected, number(from), sent));
      }
    }
  }
  return {};
}

std::vector<int> Rendezvous::missing() const {
  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r)
    if (!arrived_[static_cast<std::size_t>(r)]) ranks.push_back(number(r));
  return ranks;
}

std::string Rendezvous::describe(int rank) const {
  const Call& call = calls_[static_cast<std::size_t>(rank)];
  std::string details;
  if (call.operation == Operation::all_reduce_sum) details = fmt::format(" of {} bytes", call.values.size_bytes());
  if (call.operation == Operation::broadcast)
    details = fmt::format(" of {} bytes from rank {}", call.bytes.size(), number(call.root));
  return fmt::format("{} #{}{} on \"{}\" ({})", name(call.operation), turns_ / 2, details, name_,
                     describe_rank(rank, ranks_, run_->size()));
}

Error Rendezvous::fail(Error error) {
  broken_ = true;
  error_ = std::move(error);
  changed_.notify_all();
  return error_;
}

}  // namespace lancet::comm::inproc
