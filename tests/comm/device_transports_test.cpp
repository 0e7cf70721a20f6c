// Device communicators without a device: staged over real ranks, and one rank that takes itself for many.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <numeric>

#include "doubles/host_queue.h"
#include "doubles/inproc.h"
#include "good.h"
#include "lancet/comm/device_communicator.h"

using namespace lancet;
using comm::Segment;

namespace {

// Floats in a device's memory; the host sees them through copies.
class DeviceFloats {
 public:
  DeviceFloats(backend::Device& device, backend::Stream& stream, std::size_t count)
      : device_(device), stream_(stream), bytes_(count * sizeof(float)) {
    data_ = *device.allocate(bytes_);
    host_ = *device.allocate_host(bytes_);
  }
  DeviceFloats(const DeviceFloats&) = delete;
  DeviceFloats& operator=(const DeviceFloats&) = delete;
  ~DeviceFloats() {
    device_.free(data_);
    device_.free_host(host_);
  }
  void set(const std::vector<float>& values) {
    std::memcpy(host_, values.data(), bytes_);
    REQUIRE(stream_.copy(data_, host_, bytes_).ok());
    REQUIRE(stream_.synchronize().ok());
  }
  std::vector<float> get() {
    REQUIRE(stream_.copy(host_, data_, bytes_).ok());
    REQUIRE(stream_.synchronize().ok());
    const auto* floats = reinterpret_cast<const float*>(host_);
    return {floats, floats + bytes_ / sizeof(float)};
  }
  std::byte* data() const { return data_; }
  std::span<float> span() const { return {reinterpret_cast<float*>(data_), bytes_ / sizeof(float)}; }

 private:
  backend::Device& device_;
  backend::Stream& stream_;
  std::size_t bytes_;
  std::byte *data_ = nullptr, *host_ = nullptr;
};

std::vector<float> count_from(float first, std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

const comm::Network network{.name = "test",
                            .all_to_all_ms = [](std::span<const int>, double bytes) { return 2 + bytes * 1e-3; },
                            .all_reduce_ms = [](std::span<const int>, double bytes) { return 3 + bytes * 1e-3; }};

template <class F>
double milliseconds(F f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

TEST_CASE("staged: ranks on devices send and sum the same values as on the host") {
  std::vector<std::vector<float>> received(3), summed(3);
  test::good(comm::run_inproc(3, [&](comm::Communicator& world) -> Status {
    std::atomic<int> allocations{0};
    const auto device = test::make_host_queue({.host_allocations = &allocations});
    LANCET_ASSIGN(const auto stream, device->make_stream(true));
    LANCET_ASSIGN(const auto communicator, comm::make_staged({.device = device.get(), .host = &world}));
    LANCET_TRY(communicator->reserve(4 * (9 + 9)));
    const auto rank = std::size_t(world.rank());
    DeviceFloats out(*device, *stream, 9), in(*device, *stream, 9);
    const int reserved = allocations;
    for (int turn = 0; turn < 2; ++turn) {  // the second call reuses the first one's memory
      out.set(count_from(float(100 * rank), 9));
      std::vector<Segment> sends, receives;
      for (int peer = 0; peer < 3; ++peer) {  // peer p gets p + 1 floats; the middle rank sends none to rank 0
        const std::size_t sent = rank == 1 && peer == 0 ? 0 : std::size_t(peer) + 1;
        const std::size_t got = rank == 0 && peer == 1 ? 0 : rank + 1;
        sends.push_back({peer, out.data() + 12 * peer, 4 * sent});
        receives.push_back({peer, in.data() + 12 * peer, 4 * got});
      }
      in.set(std::vector<float>(9, -1));
      LANCET_TRY(communicator->send_receive(*stream, sends, receives));
      received[rank] = in.get();
      LANCET_TRY(communicator->all_reduce_sum(*stream, out.span()));
      summed[rank] = out.get();
    }
    if (allocations != reserved) return internal_error("expected no memory taken in a call, found some");
    return communicator->check();
  }));
  CHECK(received[0] == std::vector<float>{0, -1, -1, -1, -1, -1, 200, -1, -1});
  CHECK(received[1] == std::vector<float>{3, 4, -1, 103, 104, -1, 203, 204, -1});
  CHECK(received[2] == std::vector<float>{6, 7, 8, 106, 107, 108, 206, 207, 208});
  for (const auto& sums : summed)
    for (std::size_t i = 0; i < 9; ++i) CHECK(sums[i] == 300 + 3 * float(i));
}

TEST_CASE("mirrored: other ranks mirror this one, and calls take the network's time") {
  const auto world = comm::make_mirrored_world(4, network);
  CHECK(world->rank() == 0);
  CHECK(world->size() == 4);
  CHECK(world->transport() == "mirrored test");
  std::vector<float> out = count_from(1, 4), in(4);
  std::vector<Segment> sends, receives;
  for (int peer = 0; peer < 4; ++peer) {
    sends.push_back({peer, reinterpret_cast<std::byte*>(&out[std::size_t(peer)]), 4});
    receives.push_back({peer, reinterpret_cast<std::byte*>(&in[std::size_t(peer)]), 4});
  }
  SECTION("an all-to-all") {
    const double ms = milliseconds([&] { REQUIRE(world->send_receive(sends, receives).ok()); });
    CHECK(in == out);
    CHECK(ms >= 2 + 12e-3);  // 12 of the 16 bytes leave the rank
  }
  SECTION("a ring: to the next rank, from the previous one") {
    const std::vector<Segment> to{sends[1]}, from{receives[3]};
    REQUIRE(world->send_receive(to, from).ok());
    CHECK(in == std::vector<float>{0, 0, 0, 2});
  }
  SECTION("from all ranks to the first, which sends the others nothing") {
    REQUIRE(world->send_receive(std::span(sends).first(1), receives).ok());
    CHECK(in == std::vector<float>{1, 1, 1, 1});
  }
  SECTION("a sum") {
    const double ms = milliseconds([&] { REQUIRE(world->all_reduce_sum(out).ok()); });
    CHECK(out == std::vector<float>{4, 8, 12, 16});
    CHECK(ms >= 3 + 16e-3);
  }
  SECTION("sends and receives of different sizes are an error") {
    receives[2].bytes = 2;
    const Error status = test::refused(world->send_receive(sends, receives));
    CHECK(status.message.find("a mirrored rank must send as many bytes as it receives") != std::string::npos);
  }
}

TEST_CASE("mirrored: a group of ranks, whose network knows the members") {
  std::vector<std::vector<int>> asked;
  const auto ms = [&](std::span<const int> ranks, double) {
    asked.emplace_back(ranks.begin(), ranks.end());
    return 0.0;
  };
  const auto world = comm::make_mirrored_world(8, {"test", ms, ms});
  const std::vector<int> columns{0, 2, 4, 6}, pair{0, 2}, others{1, 3};
  const auto group = test::good(world->split(columns));
  const auto nested = (*group)->split(pair);  // ranks 0 and 4 of the world
  REQUIRE(nested.ok());
  CHECK((*group)->size() == 4);
  CHECK((*nested)->size() == 2);
  std::vector<float> values = count_from(1, 3);
  REQUIRE((*group)->all_reduce_sum(values).ok());
  CHECK(values == std::vector<float>{4, 8, 12});
  REQUIRE((*nested)->all_reduce_sum(values).ok());
  CHECK(values == std::vector<float>{8, 16, 24});
  CHECK(asked == std::vector<std::vector<int>>{columns, {0, 4}});
  CHECK_FALSE(world->split(others).ok());  // without this rank
}

TEST_CASE("mirrored: messages of neighbouring bytes, such as counts, are one copy") {
  constexpr int ranks = 64;
  std::vector<float> out(2 * ranks), in(2 * ranks);
  std::vector<Segment> sends, receives;
  for (int peer = 0; peer < ranks; ++peer) {
    sends.push_back({peer, reinterpret_cast<std::byte*>(&out[std::size_t(2 * peer)]), 8});
    for (int half = 0; half < 2; ++half)
      receives.push_back({peer, reinterpret_cast<std::byte*>(&in[std::size_t(2 * peer + half)]), 4});
  }
  std::iota(out.begin(), out.end(), 1.f);
  const auto world = comm::make_mirrored_world(ranks, network);
  const auto device = test::make_host_queue({.dropped_copy = 2});  // there is none
  auto stream = test::good(device->make_stream(true));
  auto communicator = test::good(comm::make_mirrored({.device = device.get(), .host = world.get()}));
  REQUIRE((*communicator)->send_receive(**stream, sends, receives).ok());
  REQUIRE((*stream)->synchronize().ok());
  CHECK(in == out);
}

TEST_CASE("mirrored on a device: the same behaviour on a stream") {
  const auto world = comm::make_mirrored_world(4, network);
  auto host = test::good(world->duplicate());
  const auto device = test::make_host_queue();
  auto stream = test::good(device->make_stream(true));
  auto communicator = test::good(comm::make_mirrored({.device = device.get(), .host = host->get()}));
  CHECK((*communicator)->size() == 4);
  DeviceFloats out(*device, **stream, 4), in(*device, **stream, 4);
  out.set(count_from(1, 4));
  in.set(std::vector<float>(4));
  std::vector<Segment> sends, receives;
  for (int peer = 0; peer < 4; ++peer) {
    sends.push_back({peer, out.data() + 4 * peer, 4});
    receives.push_back({peer, in.data() + 4 * peer, 4});
  }
  const double ms = milliseconds([&] {
    REQUIRE((*communicator)->send_receive(**stream, sends, receives).ok());
    REQUIRE((*communicator)->all_reduce_sum(**stream, out.span()).ok());
    REQUIRE((*stream)->synchronize().ok());
  });
  CHECK(ms >= 5 + 28e-3);
  CHECK(in.get() == count_from(1, 4));
  CHECK(out.get() == std::vector<float>{4, 8, 12, 16});
  const auto self = comm::make_self();
  const Error refused = test::refused(comm::make_mirrored({.device = device.get(), .host = self.get()}));
  CHECK(refused.code == ExitCode::config);
}

namespace {

// A communicator whose abort() does not return.
class Stuck final : public comm::DeviceCommunicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::string transport() const override { return "test"; }
  Status send_receive(backend::Stream&, std::span<const Segment>, std::span<const Segment>) override { return {}; }
  Status all_reduce_sum(backend::Stream&, std::span<float>) override { return {}; }
  Status check() override { return {}; }
  void abort(const std::string&) override {
    for (;;) ::pause();
  }
};

}  // namespace

TEST_CASE("a driver whose abort does not return ends the process with the communication exit code") {
  const pid_t child = ::fork();
  if (child == 0) {
    Stuck stuck;
    const std::array<comm::DeviceCommunicator*, 2> communicators{nullptr, &stuck};
    comm::abort_all(communicators, "rank 1 is gone", std::chrono::milliseconds(50));
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == static_cast<int>(ExitCode::communication));
}
