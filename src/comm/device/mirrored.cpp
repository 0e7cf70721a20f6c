// Data moves by local copies (mirror()): bytes sent to a peer come back from it, and an all-reduce multiplies by the
// number of ranks. The call, or its work on the device stream, then lasts as long as the declared network would need.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "../operation.h"
#include "lancet/backend/device.h"
#include "lancet/comm/device_communicator.h"

namespace lancet::comm {
namespace {

// The bytes sent to (or received from) one peer, in order.
class PeerBytes {
 public:
  PeerBytes(std::span<const Segment> segments, int peer) : segments_(segments), peer_(peer) { next(); }

  bool ended() const { return segment_ == nullptr; }
  std::size_t left() const { return segment_->bytes - used_; }
  std::byte* data() const { return segment_->data + used_; }
  void advance(std::size_t bytes) {
    used_ += bytes;
    if (left() == 0) next();
  }

 private:
  void next() {
    used_ = 0;
    segment_ = next_of_peer(segments_, peer_, at_);
  }

  std::span<const Segment> segments_;
  const int peer_;
  std::size_t at_ = 0, used_ = 0;
  const Segment* segment_ = nullptr;
};

// Lists the copies of all bytes; both sides must have the same number.
Status move_bytes(PeerBytes& from, PeerBytes& to, std::vector<backend::Copy>& copies) {
  while (!from.ended() && !to.ended()) {
    const std::size_t count = std::min(from.left(), to.left());
    backend::append_copy(copies, {to.data(), from.data(), count});
    from.advance(count);
    to.advance(count);
  }
  if (from.ended() && to.ended()) return {};
  return internal_error("a mirrored rank must send as many bytes as it receives");
}

std::size_t bytes_of(std::span<const Segment> segments, int peer) {
  std::size_t bytes = 0;
  for (const Segment& segment : segments) bytes += segment.peer == peer ? segment.bytes : 0;
  return bytes;
}

// Returns the copies in place of messages: the bytes sent to each of `ranks` peers, this rank included, are those
// received from it. Where they differ in number, the peers are other parts of the pattern that this rank, the first,
// is in: in a ring the one unmatched send feeds the one unmatched receive; where all ranks send to this one, what comes
// from a peer is what this rank sends to itself, and what it sends to the peers is received by none.
Result<std::vector<backend::Copy>> mirror(std::span<const Segment> sends, std::span<const Segment> receives,
                                          int ranks) {
  constexpr int self = 0;
  std::vector<backend::Copy> copies;
  std::vector<int> to_peers, from_peers;  // of unmatched messages
  for (int peer = 0; peer < ranks; ++peer) {
    const std::size_t sent = bytes_of(sends, peer), received = bytes_of(receives, peer);
    if (sent == received) {
      PeerBytes from(sends, peer), to(receives, peer);
      LANCET_TRY(move_bytes(from, to, copies));
      continue;
    }
    if (sent > 0) to_peers.push_back(peer);
    if (received > 0) from_peers.push_back(peer);
  }
  const bool ring = to_peers.size() == 1 && from_peers.size() == 1 && to_peers != from_peers;
  for (const int peer : from_peers) {
    PeerBytes from(sends, ring ? to_peers[0] : self), to(receives, peer);
    LANCET_TRY(move_bytes(from, to, copies));
  }
  return copies;
}

double bytes_to_others(std::span<const Segment> sends, int rank) {
  double bytes = 0;
  for (const Segment& segment : sends)
    if (segment.peer != rank) bytes += double(segment.bytes);
  return bytes;
}

using Clock = std::chrono::steady_clock;

// The local copies and sums in place of the message are part of its duration.
void sleep_from(Clock::time_point start, double milliseconds) {
  std::this_thread::sleep_until(start + std::chrono::duration<double, std::milli>(milliseconds));
}

// Calls sleep until the declared network would be done.
class MirroredHost final : public Communicator {
 public:
  MirroredHost(std::vector<int> ranks, std::shared_ptr<const Network> network)
      : ranks_(std::move(ranks)), network_(std::move(network)) {}

  int rank() const override { return 0; }
  int size() const override { return int(ranks_.size()); }
  std::string transport() const override { return "mirrored " + network_->name; }
  Status send_receive(std::span<const Segment> sends, std::span<const Segment> receives) override {
    const auto start = Clock::now();
    LANCET_ASSIGN(const std::vector<backend::Copy> copies, mirror(sends, receives, size()));
    for (const backend::Copy& copy : copies) std::memmove(copy.to, copy.from, copy.bytes);
    sleep_from(start, network_->all_to_all_ms(ranks_, bytes_to_others(sends, 0)));
    return {};
  }
  Status all_reduce_sum(std::span<float> values) override {
    const auto start = Clock::now();
    for (float& value : values) value *= float(size());
    sleep_from(start, network_->all_reduce_ms(ranks_, double(values.size_bytes())));
    return {};
  }
  Status broadcast(std::span<std::byte>, int) override { return {}; }
  Status barrier() override { return {}; }
  Result<std::unique_ptr<Communicator>> split(std::span<const int> members) override {
    LANCET_TRY(check_members(members, 0, size()));
    std::vector<int> ranks;
    for (const int member : members) ranks.push_back(ranks_[std::size_t(member)]);
    return std::unique_ptr<Communicator>(std::make_unique<MirroredHost>(std::move(ranks), network_));
  }
  void abort(const std::string&) override {}
  void set_timeout(std::chrono::milliseconds) override {}

  const std::vector<int>& ranks() const { return ranks_; }
  const std::shared_ptr<const Network>& network() const { return network_; }

 private:
  const std::vector<int> ranks_;  // rank 0 is this one
  const std::shared_ptr<const Network> network_;
};

class Mirrored final : public DeviceCommunicator {
 public:
  explicit Mirrored(const MirroredHost& host) : ranks_(host.ranks()), network_(host.network()) {}

  int rank() const override { return 0; }
  int size() const override { return int(ranks_.size()); }
  std::string transport() const override { return "mirrored"; }

  Status send_receive(backend::Stream& stream, std::span<const Segment> sends,
                      std::span<const Segment> receives) override {
    LANCET_ASSIGN(const std::vector<backend::Copy> copies, mirror(sends, receives, size()));
    return with_duration(stream, network_->all_to_all_ms(ranks_, bytes_to_others(sends, 0)),
                         [&] { return stream.copy_all(copies); });
  }
  Status all_reduce_sum(backend::Stream& stream, std::span<float> values) override {
    return with_duration(stream, network_->all_reduce_ms(ranks_, double(values.size_bytes())),
                         [&] { return stream.scale(values.data(), values.size(), float(size())); });
  }
  Status check() override { return {}; }
  void abort(const std::string&) override {}

 private:
  // Queues the work of put() and keeps the stream busy until `milliseconds` after its start.
  template <class Put>
  static Status with_duration(backend::Stream& stream, double milliseconds, const Put& put) {
    LANCET_TRY(stream.mark());
    LANCET_TRY(put());
    return stream.delay_from_mark(milliseconds);
  }

  const std::vector<int> ranks_;
  const std::shared_ptr<const Network> network_;
};

}  // namespace

std::unique_ptr<Communicator> make_mirrored_world(int ranks, Network network) {
  std::vector<int> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  return std::make_unique<MirroredHost>(std::move(all), std::make_shared<const Network>(std::move(network)));
}

Result<std::unique_ptr<DeviceCommunicator>> make_mirrored(const DeviceStream& stream) {
  const auto* host = dynamic_cast<const MirroredHost*>(stream.host);
  if (!host) return config_error("comm.transport: expected a mirrored world for mirrored, found real ranks");
  return std::unique_ptr<DeviceCommunicator>(std::make_unique<Mirrored>(*host));
}

}  // namespace lancet::comm
