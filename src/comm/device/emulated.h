// Host communicator of an emulated rank.
#pragma once
#include "lancet/comm/emulated.h"

namespace lancet::comm {

class EmulatedHost final : public Communicator {
 public:
  EmulatedHost(int ranks, std::shared_ptr<const Network> network) : ranks_(ranks), network_(std::move(network)) {}

  int rank() const override { return 0; }
  int size() const override { return ranks_; }
  std::string transport() const override { return "emulated " + network_->name; }
  // Both sleep until the declared network would be done.
  Status send_receive(std::span<const Segment> sends, std::span<const Segment> receives) override;
  Status all_reduce_sum(std::span<float> values) override;
  Status broadcast(std::span<std::byte>, int) override { return {}; }
  Status barrier() override { return {}; }
  Result<std::unique_ptr<Communicator>> duplicate() override {
    return std::unique_ptr<Communicator>(std::make_unique<EmulatedHost>(ranks_, network_));
  }
  void abort(const std::string&) override {}
  void set_timeout(std::chrono::milliseconds) override {}

  const std::shared_ptr<const Network>& network() const { return network_; }

 private:
  const int ranks_;
  const std::shared_ptr<const Network> network_;
};

}  // namespace lancet::comm
