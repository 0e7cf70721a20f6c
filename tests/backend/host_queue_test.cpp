// The host queue device: order, flags, recording, errors, addresses.
#include "doubles/host_queue.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "lancet/backend/device.h"

namespace lancet::test {
namespace {

using namespace backend;

template <class T>
T made(Result<T> result) {
  if (!result.ok()) FAIL(result.error().message);
  return std::move(result).value();
}
HostQueueStream& host(Stream& stream) { return *static_cast<HostQueueStream*>(stream.native()); }

}  // namespace

TEST_CASE("host queue: a stream works in order, and flags join streams in either order of signal and wait") {
  const auto device = make_host_queue({.pause_us = 200, .seed = 3});
  const auto first = made(device->make_stream(false)), second = made(device->make_stream(true));
  auto* flag = reinterpret_cast<Flag*>(made(device->allocate_host(sizeof(Flag))));
  std::vector<int> order;
  REQUIRE(second->wait(flag).ok());
  REQUIRE(host(*second).enqueue([&]() -> Status { return order.push_back(3), Status(); }).ok());
  for (int i = 0; i < 3; ++i)
    REQUIRE(host(*first).enqueue([&order, i]() -> Status { return order.push_back(i), Status(); }).ok());
  REQUIRE(first->signal(flag).ok());
  REQUIRE(second->synchronize().ok());
  CHECK(order == std::vector<int>{0, 1, 2, 3});
  REQUIRE(first->synchronize().ok());
}

TEST_CASE("host queue: memory is copied both ways, has addresses of its own, and has a limit") {
  const auto device = make_host_queue({.bytes = 4096});
  const auto stream = made(device->make_stream(false));
  std::byte* memory = made(device->allocate(1024));
  auto* here = reinterpret_cast<int*>(made(device->allocate_host(1024)));
  CHECK(here[255] == 0);
  CHECK(host_address(memory) != memory);
  CHECK(host_address(here) == here);
  CHECK(host_address(nullptr) == nullptr);
  here[0] = 7, here[1] = 8;
  REQUIRE(stream->copy(memory, here, 8).ok());
  REQUIRE(stream->zero(memory, 4).ok());
  REQUIRE(stream->copy(here + 2, memory, 8).ok());
  REQUIRE(stream->synchronize().ok());
  CHECK(here[2] == 0);
  CHECK(here[3] == 8);
  CHECK(device->free_bytes() == 3072);
  const auto refused = device->allocate(3073);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().message == "expected 3073 bytes of memory on host queue, found 3072 free");
  CHECK(refused.error().code == ExitCode::config);
  device->free(memory);
  CHECK(device->free_bytes() == 4096);
}

TEST_CASE("host queue: a call that finds the queue full blocks the calls of all streams until the queue has room") {
  const auto device = make_host_queue({.most_queued = 4});
  const auto full = made(device->make_stream(false)), other = made(device->make_stream(false));
  auto* flag = reinterpret_cast<Flag*>(made(device->allocate_host(sizeof(Flag))));
  REQUIRE(full->wait(flag).ok());
  std::atomic<bool> put_on_full{false}, put_on_other{false};
  std::jthread filling([&] {
    bool good = true;
    for (int i = 0; i < 5; ++i) good &= full->delay(0).ok();
    put_on_full = good;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  std::jthread waiting([&] { put_on_other = other->delay(0).ok(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK_FALSE(put_on_full);
  CHECK_FALSE(put_on_other);
  std::atomic_ref(*flag).store(1);
  filling.join();
  waiting.join();
  CHECK(put_on_full);
  CHECK(put_on_other);
  REQUIRE(full->synchronize().ok());
}

TEST_CASE("host queue: a call that blocks for ever is an error") {
  const auto device = make_host_queue({.most_queued = 2});
  const auto stream = made(device->make_stream(false));
  auto* flag = reinterpret_cast<Flag*>(made(device->allocate_host(sizeof(Flag))));
  Status status;
  for (int i = 0; status.ok() && i < 4; ++i) status = stream->wait(flag);
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().message == "a call has blocked in the driver for 5 s: the stream's queue holds 2 commands");
  CHECK_FALSE(stream->synchronize().ok());  // a driver that is stuck runs nothing more
}

TEST_CASE("host queue: streams of one hardware queue block each other") {
  const auto device = make_host_queue({.one_queue = true});
  const auto first = made(device->make_stream(false)), second = made(device->make_stream(false));
  auto* flag = reinterpret_cast<Flag*>(made(device->allocate_host(sizeof(Flag))));
  REQUIRE(second->wait(flag).ok());
  REQUIRE(first->delay(0).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_FALSE(*first->idle());
  std::atomic_ref(*flag).store(1);
  REQUIRE(first->synchronize().ok());
}

TEST_CASE("host queue: recorded work runs at each launch") {
  const auto device = make_host_queue();
  const auto stream = made(device->make_stream(false));
  std::atomic<int> runs{0};
  REQUIRE(stream->begin_capture().ok());
  REQUIRE(host(*stream).enqueue([&]() -> Status { return ++runs, Status(); }).ok());
  const auto graph = made(stream->end_capture());
  REQUIRE(stream->synchronize().ok());
  CHECK(runs == 0);
  REQUIRE(stream->launch(*graph).ok());
  REQUIRE(stream->launch(*graph).ok());
  REQUIRE(stream->synchronize().ok());
  CHECK(runs == 2);
}

TEST_CASE("host queue: a failed stream does no more work and returns its error") {
  const auto device = make_host_queue();
  const auto stream = made(device->make_stream(false));
  std::atomic<bool> ran{false};
  REQUIRE(host(*stream).enqueue([]() -> Status { return data_error("gone"); }).ok());
  static_cast<void>(host(*stream).enqueue([&]() -> Status { return ran = true, Status(); }));
  CHECK(stream->synchronize().error().message == "gone");
  CHECK_FALSE(ran);
  CHECK_FALSE(host(*stream).enqueue([]() -> Status { return {}; }).ok());
}

TEST_CASE("host queue: events measure the work between them") {
  const auto device = make_host_queue();
  const auto stream = made(device->make_stream(false));
  const auto before = made(device->make_event()), after = made(device->make_event());
  REQUIRE(stream->record(*before).ok());
  REQUIRE(stream->delay(2).ok());
  REQUIRE(stream->record(*after).ok());
  REQUIRE(stream->synchronize().ok());
  CHECK(made(device->milliseconds(*before, *after)) >= 2);
}

}  // namespace lancet::test
