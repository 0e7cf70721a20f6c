// Ranks whose NCCL does not connect, breaks or waits in vain: what users read, and that nobody waits longer.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <thread>

#include "fake_nccl.h"
#include "fake_runtime.h"
#include "lancet/backend/host_queue.h"
#include "lancet/comm/device_transports.h"

using namespace lancet;
using test::fake_nccl;

namespace {

constexpr auto soon = std::chrono::seconds(1);

struct Fresh {
  Fresh() {
    auto& nccl = fake_nccl();
    nccl.connects = true, nccl.state = ncclSuccess;
    nccl.aborted = 0, nccl.sends = 0, nccl.receives = 0, nccl.sums = 0, nccl.connected = 0;
    nccl.no_memory_on = -1, nccl.not_opened_on = -1, nccl.opened = 0, nccl.stopped = 0;
    test::fake_runtime() = {};
    test::stream_queries() = 0;
    ::unsetenv("NCCL_SOCKET_IFNAME");
  }
};

// What two ranks' body(stream, stream) gives; the stream is connected.
template <class Body>
std::vector<Status> on_two_ranks(const Body& body) {
  std::vector<Status> found(2);
  const Status status = comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    const auto device = backend::make_host_queue();
    LANCET_ASSIGN(const auto stream, device->make_stream(true));
    auto stream = comm::make_nccl({.device = device.get(), .host = &world, .max_ctas = 4, .timeout = soon});
    found[std::size_t(world.rank())] = stream.ok() ? body(**stream, *stream) : Status(stream.error());
    return {};
  });
  if (!status.ok()) FAIL(status.error().message);
  return found;
}

}  // namespace

TEST_CASE_METHOD(Fresh, "NCCL takes no more blocks than comm.max_ctas, and does not block") {
  for (const Status& status : on_two_ranks([](comm::DeviceCommunicator&stream, backend::Stream&) {
         return stream.transport() == "nccl" && stream.size() == 2 ? Status() : internal_error("another stream");
       }))
    CHECK(status.ok());
  CHECK(fake_nccl().max_ctas == 4);
  CHECK(fake_nccl().min_ctas == 1);
  CHECK_FALSE(fake_nccl().blocking);
}

TEST_CASE_METHOD(Fresh, "NCCL that cannot connect: the ranks, the timeout and the interface, on all ranks") {
  fake_nccl().connects = false;
  ::setenv("NCCL_SOCKET_IFNAME", "eth9", 1);
  for (const Status& status : on_two_ranks([](comm::DeviceCommunicator&, backend::Stream&) { return Status(); })) {
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == ExitCode::communication);
    CHECK(status.error().message ==
          "expected NCCL to connect 2 ranks by NCCL_SOCKET_IFNAME=eth9, found that ranks 0, 1 did not: expected the "
          "connection with 1 other ranks within 1 s by NCCL_SOCKET_IFNAME=eth9, found that some did not come");
  }
  CHECK(fake_nccl().aborted == 2);
}

TEST_CASE_METHOD(Fresh, "a connection that breaks while calls are queued") {
  for (const Status& status : on_two_ranks([](comm::DeviceCommunicator&stream, backend::Stream&stream) -> Status {
         std::vector<float> values(4);
         LANCET_TRY(stream.all_reduce_sum(stream, values));
         LANCET_TRY(stream.check());
         fake_nccl().state = ncclRemoteError;
         return stream.check();
       })) {
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == ExitCode::communication);
    CHECK(status.error().message.find("NCCL: expected ") == 0);
    CHECK(status.error().message.find(" to succeed, found: remote process exited; as NCCL says it") !=
          std::string::npos);
  }
}

TEST_CASE_METHOD(Fresh, "an aborted stream refuses every call, also one that another thread waits in") {
  on_two_ranks([](comm::DeviceCommunicator& stream, backend::Stream& stream) -> Status {
    std::vector<float> values(4);
    fake_nccl().state = ncclInProgress;
    std::jthread other([&] {
      std::this_thread::sleep_for(soon / 4);
      stream.abort("stream expert: a peer is gone");
    });
    for (const Status& status : {stream.all_reduce_sum(stream, values), stream.check(), stream.exchange(stream, {}, {})}) {
      CHECK_FALSE(status.ok());
      if (!status.ok()) CHECK(status.error().message == "communication was aborted: stream expert: a peer is gone");
    }
    return {};
  });
  CHECK(fake_nccl().aborted == 2);
}

TEST_CASE_METHOD(Fresh, "who is missing is asked over the host") {
  std::vector<std::string> missing(2);
  on_two_ranks([&](comm::DeviceCommunicator& stream, backend::Stream&) -> Status {
    if (stream.rank() == 0) missing[0] = stream.who_is_missing();
    return {};
  });
  CHECK(missing[0].find("rank 1") != std::string::npos);
}

namespace {

// What each rank finds of a window of 256 bytes, and whether its stream can be used afterwards.
std::vector<Status> ask_for_windows() {
  return on_two_ranks([](comm::DeviceCommunicator& stream, backend::Stream& stream) -> Status {
    const auto window = stream.make_window(256);
    std::vector<float> values(4);
    LANCET_TRY(stream.all_reduce_sum(stream, values));
    LANCET_TRY(stream.check());
    if (!window.ok()) return window.error();
    return window->size() == 256 && stream.in_window(window->data(), 256) ? Status() : internal_error("another window");
  });
}

void check_without(const std::vector<Status>& found, int rank, const std::string& why) {
  const std::string who = "ranks " + std::to_string(rank) + " have no window";
  for (int r = 0; r < 2; ++r) {
    REQUIRE_FALSE(found[std::size_t(r)].ok());
    CHECK(found[std::size_t(r)].error().agreed);
    CHECK(found[std::size_t(r)].error().message == (r == rank ? who + ": " + why : who));
  }
  CHECK(fake_nccl().windows == 0);
  CHECK(fake_nccl().sums == 2);
}

}  // namespace

TEST_CASE_METHOD(Fresh, "a window is on all ranks") {
  for (const Status& status : ask_for_windows()) CHECK(status.ok());
  CHECK(fake_nccl().opened == 2);
  CHECK(fake_nccl().connected == 2);
  CHECK(fake_nccl().windows == 0);  // they end with their streams
}

TEST_CASE_METHOD(Fresh, "one rank without memory for a window: none has one, none waits, the stream goes on") {
  fake_nccl().no_memory_on = 1;
  check_without(ask_for_windows(), 1, "no memory for a window");
  CHECK(fake_nccl().opened == 0);
  CHECK(fake_nccl().connected == 2);
}

TEST_CASE_METHOD(Fresh, "one rank that NCCL refuses a window: none has one, and all connect anew") {
  fake_nccl().not_opened_on = 0;
  check_without(ask_for_windows(), 0,
                "NCCL: expected a window to succeed, found: remote process exited; as NCCL says it");
  CHECK(fake_nccl().opened == 2);
  CHECK(fake_nccl().connected == 4);
  CHECK(fake_nccl().aborted == 4);  // two before, two when the streams end
}

TEST_CASE_METHOD(Fresh, "pushes come out of a window before its communicator goes, or time is up") {
  const auto abort_after_push = [](comm::DeviceCommunicator& stream, backend::Stream& stream) -> Status {
    LANCET_TRY(stream.make_window(256));
    LANCET_TRY(stream.push_rows(stream, {}));
    if (stream.rank() == 0) stream.abort("a peer is gone");
    return {};
  };
  for (const Status& status : on_two_ranks(abort_after_push)) CHECK(status.ok());
  CHECK(fake_nccl().stopped == 1);
  CHECK(test::stream_queries() == 1);
  test::stream_queries() = 0;
  test::fake_runtime().stream_state = cudaErrorNotReady;
  for (const Status& status : on_two_ranks(abort_after_push)) CHECK(status.ok());
  CHECK(test::stream_queries() > 1);
  CHECK(fake_nccl().aborted == 4);
}
