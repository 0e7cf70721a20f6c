// make_scaled: what reaches the communicator below.
#include "lancet/comm/communicator.h"

#include <catch2/catch.hpp>
#include <utility>
#include <vector>

namespace lancet::comm {
namespace {

// Notes the calls that it gets.
class Noting final : public Communicator {
 public:
  int rank() const override { return 1; }
  int size() const override { return 3; }
  std::string transport() const override { return "noting"; }
  Status send_receive(std::span<const Segment> sends, std::span<const Segment> receives) override {
    sent.assign(sends.begin(), sends.end());
    received.assign(receives.begin(), receives.end());
    return {};
  }
  Status all_reduce_sum(std::span<float> values) override {
    summed.push_back(values.size());
    return {};
  }
  Status broadcast(std::span<std::byte> bytes, int) override {
    broadcasts.push_back(bytes.size());
    return {};
  }
  Status barrier() override { return {}; }
  Result<std::unique_ptr<Communicator>> split(std::span<const int>) override { return make_self(); }
  void abort(const std::string& why) override { aborted = why; }
  void set_timeout(std::chrono::milliseconds) override {}
  void scale_messages(double by) override { scale = by; }

  std::vector<Segment> sent, received;
  std::vector<std::size_t> summed, broadcasts;
  std::string aborted;
  double scale = 1;
};

TEST_CASE("scaled messages keep number and order, have fewer bytes, and leave the caller's memory alone") {
  Noting below;
  const auto scaled = make_scaled(below, 10);
  CHECK(below.scale == 10);
  CHECK(scaled->rank() == 1);
  CHECK(scaled->size() == 3);
  std::vector<std::byte> mine(100, std::byte{7}), theirs(60, std::byte{8});
  const Segment sends[] = {{2, mine.data(), 41}, {0, mine.data() + 41, 0}, {0, mine.data() + 41, 40}};
  const Segment receives[] = {{0, theirs.data(), 9}, {2, theirs.data() + 9, 51}};
  REQUIRE(scaled->send_receive(sends, receives).ok());

  const auto outside = [](const Segment& segment, const std::vector<std::byte>& memory) {
    return segment.data + segment.bytes <= memory.data() || segment.data >= memory.data() + memory.size();
  };
  const auto bytes_by_peer = [](const std::vector<Segment>& segments) {
    std::vector<std::pair<int, std::size_t>> result;
    for (const Segment& segment : segments) result.emplace_back(segment.peer, segment.bytes);
    return result;
  };
  using Bytes = std::vector<std::pair<int, std::size_t>>;
  CHECK(bytes_by_peer(below.sent) == Bytes{{2, 5}, {0, 0}, {0, 4}});  // rounded up; nothing stays nothing
  CHECK(bytes_by_peer(below.received) == Bytes{{0, 1}, {2, 6}});
  for (const Segment& segment : below.sent) CHECK(outside(segment, mine));
  for (const Segment& segment : below.received) CHECK(outside(segment, theirs));
  CHECK(below.received[1].data == below.received[0].data + 1);  // messages do not overlap

  std::vector<float> values(25, 3.f);
  REQUIRE(scaled->all_reduce_sum(values).ok());
  CHECK(below.summed == std::vector<std::size_t>{3});
  CHECK(values == std::vector<float>(25, 3.f));
  REQUIRE(scaled->broadcast(mine, 0).ok());
  CHECK(below.broadcasts == std::vector<std::size_t>{100});
  scaled->abort("why");
  CHECK(below.aborted == "why");
}

}  // namespace
}  // namespace lancet::comm
