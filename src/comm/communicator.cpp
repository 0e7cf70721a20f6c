#include "lancet/comm/communicator.h"

#include <fmt/format.h>
#include <cmath>
#include <mutex>
#include <numeric>
#include <vector>

#include "lancet/comm/scaled.h"
#include "operation.h"

namespace lancet::comm {

Result<std::unique_ptr<Communicator>> Communicator::duplicate() {
  std::vector<int> all(static_cast<std::size_t>(size()));
  std::iota(all.begin(), all.end(), 0);
  return split(all);
}

// Communicator of a single rank: sends to oneself are copied, collectives return their input.
namespace {

struct SelfState {
  std::mutex mutex;
  bool aborted = false;
  std::string why;
};

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

std::unique_ptr<Communicator> make_self() { return std::make_unique<SelfCommunicator>(std::make_shared<SelfState>()); }

namespace {

class Scaled final : public Communicator {
 public:
  Scaled(Communicator& communicator, double scale) : communicator_(communicator), scale_(scale) {
    communicator_.scale_messages(scale);
  }

  int rank() const override { return communicator_.rank(); }
  int size() const override { return communicator_.size(); }
  std::string transport() const override { return communicator_.transport(); }
  Status send_receive(std::span<const Segment> sends, std::span<const Segment> receives) override {
    return communicator_.send_receive(scaled(sends, sent_, sends_), scaled(receives, received_, receives_));
  }
  Status all_reduce_sum(std::span<float> values) override {
    sums_.resize(std::size_t(std::ceil(double(values.size()) / scale_)));
    return communicator_.all_reduce_sum(sums_);
  }
  Status broadcast(std::span<std::byte> bytes, int root) override { return communicator_.broadcast(bytes, root); }
  Status barrier() override { return communicator_.barrier(); }
  Result<std::unique_ptr<Communicator>> split(std::span<const int> members) override {
    return communicator_.split(members);
  }
  bool carries_values() const override { return false; }
  void abort(const std::string& why) override { communicator_.abort(why); }
  void set_timeout(std::chrono::milliseconds timeout) override { communicator_.set_timeout(timeout); }

 private:
  // The segments, scaled, one after the other in `memory`.
  std::span<const Segment> scaled(std::span<const Segment> segments, std::vector<std::byte>& memory,
                                  std::vector<Segment>& small) const {
    small.assign(segments.begin(), segments.end());
    std::size_t total = 0;
    for (Segment& segment : small) total += segment.bytes = std::size_t(std::ceil(double(segment.bytes) / scale_));
    if (memory.size() < total) memory.resize(total);
    std::byte* next = memory.data();
    for (Segment& segment : small) {
      segment.data = next;
      next += segment.bytes;
    }
    return small;
  }

  Communicator& communicator_;
  const double scale_;
  std::vector<std::byte> sent_, received_;
  std::vector<Segment> sends_, receives_;
  std::vector<float> sums_;
};

}  // namespace

std::unique_ptr<Communicator> make_scaled(Communicator& communicator, double scale) {
  return std::make_unique<Scaled>(communicator, scale);
}

}  // namespace lancet::comm
