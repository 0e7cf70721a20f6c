// What the host queue device refuses: full queues, blocked streams, failed ones.
#include "doubles/host_queue.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

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

}  // namespace lancet::test
