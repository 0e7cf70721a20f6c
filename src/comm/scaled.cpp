#include "lancet/comm/communicator.h"

#include <cmath>
#include <vector>

namespace lancet::comm {
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
