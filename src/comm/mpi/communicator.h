// Communicator over MPI: every operation is a set of point-to-point messages that the progress thread carries.
#pragma once
#include <memory>

#include "lancet/comm/communicator.h"
#include "progress.h"

namespace lancet::comm::mpi {

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<Progress> progress, Channel* channel)
      : progress_(std::move(progress)), channel_(*channel) {}
  int rank() const override { return channel_.rank; }
  int size() const override { return channel_.size; }
  std::string transport() const override { return "mpi"; }
  Status send_receive(std::span<const Segment> sends, std::span<const Segment> receives) override;
  Status all_reduce_sum(std::span<float> values) override;
  Status broadcast(std::span<std::byte> bytes, int root) override;
  Status barrier() override;
  Result<std::unique_ptr<Communicator>> split(std::span<const int> members) override;
  void abort(const std::string& why) override { progress_->abort(why); }
  void set_timeout(std::chrono::milliseconds timeout) override { channel_.timeout = timeout; }
  void scale_messages(double scale) override { scale_ = scale; }
  void set_name(const std::string& name) override;

 private:
  // The partition of an all-reduce: in round k rank r sums the `piece` floats from offset (k * size + r) * piece on.
  struct Cut {
    std::size_t rounds, piece;
  };
  Cut cut(std::size_t count) const;
  std::span<float> piece_of(std::span<float> values, const Cut& cut, std::size_t round, int rank) const;
  float* received(const Cut& cut, std::size_t round, int from);
  Status begin();
  Status check_all_groups(std::span<const int> members);
  Request& prepare(std::size_t slot, Operation operation, std::size_t total_bytes);
  Status run(Request& request);
  Status reduce_small(std::span<float> values);
  void post_sums(std::span<float> values, const Cut& cut, std::size_t round);
  void post_gather(std::span<float> values, const Cut& cut, std::size_t round);
  void sum_own_piece(std::span<float> values, const Cut& cut, std::size_t round);

  std::shared_ptr<Progress> progress_;
  Channel& channel_;
  double scale_ = 1;
};

}  // namespace lancet::comm::mpi
