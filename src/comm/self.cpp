#include "lancet/comm/communicator.h"

#include <fmt/format.h>

#include <mutex>
#include <numeric>

#include "operation.h"

namespace lancet::comm {
namespace {

struct SelfState {
  std::mutex mutex;
  bool aborted = false;
  std::string why;
};

// Of a single rank: sends to oneself are copied, collectives return their input.
class SelfCommunicator final : public Communicator {
 public:
  explicit SelfCommunicator(std::shared_ptr<SelfState> state) : state_(std::move(state)) {}
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string transport() const override { return "self"; }

  Status send_receive(std::span<const Segment> sends, std::span<const Segment> receives) override {
    LANCET_TRY(check_alive());
    LANCET_TRY(check_peers(sends, "send", 0, 1));
    LANCET_TRY(check_peers(receives, "receive", 0, 1));
    return copy_to_self(sends, receives, 0);
  }
  Status all_reduce_sum(std::span<float>) override { return check_alive(); }
  Status broadcast(std::span<std::byte>, int root) override {
    if (root != 0)
      return internal_error(fmt::format("broadcast: root is rank {}, expected 0: there is one rank", root));
    return check_alive();
  }
  Status barrier() override { return check_alive(); }
  Result<std::unique_ptr<Communicator>> split(std::span<const int> members) override {
    LANCET_TRY(check_alive());
    LANCET_TRY(check_members(members, 0, 1));
    return std::unique_ptr<Communicator>(new SelfCommunicator(state_));
  }
  void abort(const std::string& why) override {
    std::lock_guard lock(state_->mutex);
    if (!state_->aborted) state_->why = why;
    state_->aborted = true;
  }
  void set_timeout(std::chrono::milliseconds) override {}

 private:
  Status check_alive() {
    std::lock_guard lock(state_->mutex);
    if (state_->aborted) return communication_error("communication was aborted: " + state_->why);
    return {};
  }
  std::shared_ptr<SelfState> state_;  // shared by all that were split from one
};

}  // namespace

Result<std::unique_ptr<Communicator>> Communicator::duplicate() {
  std::vector<int> all(static_cast<std::size_t>(size()));
  std::iota(all.begin(), all.end(), 0);
  return split(all);
}

std::unique_ptr<Communicator> make_self() { return std::make_unique<SelfCommunicator>(std::make_shared<SelfState>()); }

}  // namespace lancet::comm
