// NCCL that does not connect, breaks or hangs: the errors that users read, and the bounds on waiting.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <thread>

#include "doubles/host_queue.h"
#include "doubles/inproc.h"
#include "fake_nccl.h"
#include "fake_runtime.h"
#include "lancet/comm/device_communicator.h"

using namespace lancet;
using test::fake_nccl;

namespace {

constexpr auto soon = std::chrono::seconds(1);

struct FreshNccl {
  FreshNccl() {
    auto& nccl = fake_nccl();
    nccl.connects = true, nccl.finalizes = true, nccl.state = ncclSuccess;
    nccl.finalized = 0, nccl.destroyed = 0;
    nccl.aborted = 0, nccl.sends = 0, nccl.receives = 0, nccl.sums = 0, nccl.connected = 0;
    nccl.no_memory_on = -1, nccl.not_opened_on = -1, nccl.opened = 0, nccl.stopped = 0;
    test::fake_runtime() = {};
    test::stream_queries() = 0;
    test::event_queries() = 0;
    ::unsetenv("NCCL_SOCKET_IFNAME");
  }
};

// Returns the results of body(communicator, stream) on two ranks; the communicator is connected.
template <class Body>
std::vector<Status> on_two_ranks(const Body& body) {
  std::vector<Status> found(2);
  const Status status = comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    const auto device = test::make_host_queue();
    LANCET_ASSIGN(const auto stream, device->make_stream(true));
    auto nccl = comm::make_nccl({.device = device.get(), .host = &world, .max_ctas = 4, .timeout = soon});
    found[std::size_t(world.rank())] = nccl.ok() ? body(**nccl, *stream) : Status(nccl.error());
    return {};
  });
  if (!status.ok()) FAIL(status.error().message);
  return found;
}

}  // namespace

TEST_CASE_METHOD(FreshNccl, "NCCL uses at most comm.max_ctas blocks, and its calls do not block") {
  for (const Status& status : on_two_ranks([](comm::DeviceCommunicator&nccl, backend::Stream&) {
         return nccl.transport() == "nccl" && nccl.size() == 2 ? Status() : internal_error("another communicator");
       }))
    CHECK(status.ok());
  CHECK(fake_nccl().max_ctas == 4);
  CHECK(fake_nccl().min_ctas == 1);
  CHECK_FALSE(fake_nccl().blocking);
}

TEST_CASE_METHOD(FreshNccl, "all ranks report a failed connection with the ranks, the timeout and the interface") {
  fake_nccl().connects = false;
  ::setenv("NCCL_SOCKET_IFNAME", "eth9", 1);
  for (const Status& status : on_two_ranks([](comm::DeviceCommunicator&, backend::Stream&) { return Status(); })) {
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == ExitCode::communication);
    CHECK(status.error().message ==
          "NCCL: ranks 0, 1 of 2 did not connect by NCCL_SOCKET_IFNAME=eth9: NCCL: the connection with 1 other ranks "
          "by NCCL_SOCKET_IFNAME=eth9 timed out after 1 s");
  }
  CHECK(fake_nccl().aborted == 2);
  CHECK(fake_nccl().finalized == 0);
}

TEST_CASE_METHOD(FreshNccl, "a healthy communicator ends when all ranks have finalized theirs") {
  for (const Status& status : on_two_ranks([](comm::DeviceCommunicator&, backend::Stream&) { return Status(); }))
    CHECK(status.ok());
  CHECK(fake_nccl().finalized == 2);
  CHECK(fake_nccl().destroyed == 2);
  CHECK(fake_nccl().aborted == 0);
}

TEST_CASE_METHOD(FreshNccl, "a communicator whose peers never finalize theirs is aborted after the timeout") {
  fake_nccl().finalizes = false;
  const auto start = std::chrono::steady_clock::now();
  for (const Status& status : on_two_ranks([](comm::DeviceCommunicator&, backend::Stream&) { return Status(); }))
    CHECK(status.ok());
  CHECK(std::chrono::steady_clock::now() - start >= soon);
  CHECK(fake_nccl().finalized == 2);
  CHECK(fake_nccl().destroyed == 0);
  CHECK(fake_nccl().aborted == 2);
}

TEST_CASE_METHOD(FreshNccl, "a connection that breaks while calls are queued is an error") {
  for (const Status& status : on_two_ranks([](comm::DeviceCommunicator&nccl, backend::Stream&stream) -> Status {
         std::vector<float> values(4);
         LANCET_TRY(nccl.all_reduce_sum(stream, values));
         LANCET_TRY(nccl.check());
         fake_nccl().state = ncclRemoteError;
         return nccl.check();
       })) {
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == ExitCode::communication);
    CHECK(status.error().message.find("NCCL: ") == 0);
    CHECK(status.error().message.find(" failed: remote process exited; as NCCL says it") != std::string::npos);
  }
  CHECK(fake_nccl().aborted == 2);
  CHECK(fake_nccl().finalized == 0);
}

TEST_CASE_METHOD(FreshNccl, "an aborted communicator fails every call, also a waiting one of another thread") {
  on_two_ranks([](comm::DeviceCommunicator& nccl, backend::Stream& stream) -> Status {
    std::vector<float> values(4);
    fake_nccl().state = ncclInProgress;
    std::jthread other([&] {
      std::this_thread::sleep_for(soon / 4);
      nccl.abort("stream expert: a peer is gone");
    });
    for (const Status& status :
         {nccl.all_reduce_sum(stream, values), nccl.check(), nccl.send_receive(stream, {}, {})}) {
      CHECK_FALSE(status.ok());
      if (!status.ok()) CHECK(status.error().message == "communication was aborted: stream expert: a peer is gone");
    }
    return {};
  });
  CHECK(fake_nccl().aborted == 2);
}

TEST_CASE_METHOD(FreshNccl, "missing ranks are found through the host's communicator") {
  std::vector<std::string> missing(2);
  on_two_ranks([&](comm::DeviceCommunicator& nccl, backend::Stream&) -> Status {
    if (nccl.rank() == 0) missing[0] = nccl.who_is_missing();
    return {};
  });
  CHECK(missing[0].find("rank 1") != std::string::npos);
}

namespace {

// Returns each rank's result of a window of 256 bytes, after a check that its communicator still works.
std::vector<Status> ask_for_windows() {
  return on_two_ranks([](comm::DeviceCommunicator& nccl, backend::Stream& stream) -> Status {
    const auto window = nccl.make_window(256);
    std::vector<float> values(4);
    LANCET_TRY(nccl.all_reduce_sum(stream, values));
    LANCET_TRY(nccl.check());
    if (!window.ok()) return window.error();
    return window->size() == 256 && nccl.in_window(window->data(), 256) ? Status() : internal_error("another window");
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

TEST_CASE_METHOD(FreshNccl, "all ranks get a window") {
  for (const Status& status : ask_for_windows()) CHECK(status.ok());
  CHECK(fake_nccl().opened == 2);
  CHECK(fake_nccl().connected == 2);
  CHECK(fake_nccl().windows == 0);  // they end with their communicators
}

TEST_CASE_METHOD(FreshNccl, "another window takes the place of the first, once no rank uses that one's communicator") {
  const auto two_windows = [](comm::DeviceCommunicator& nccl, backend::Stream& stream) -> Status {
    LANCET_ASSIGN(const std::span<std::byte> first, nccl.make_window(256));
    const std::byte* const at = first.data();
    LANCET_ASSIGN(const std::span<std::byte> second, nccl.make_window(512));
    LANCET_TRY(nccl.in_windows(stream, [](backend::Stream&, const comm::Window&) { return Status(); }));
    const bool replaced = second.size() == 512 && nccl.in_window(second.data(), 512) && !nccl.in_window(at, 1);
    return replaced && nccl.check().ok() ? Status() : internal_error("another window");
  };
  for (const Status& status : on_two_ranks(two_windows)) CHECK(status.ok());
  CHECK(fake_nccl().opened == 4);
  CHECK(fake_nccl().connected == 4);
  CHECK(fake_nccl().finalized == 4);
  CHECK(fake_nccl().destroyed == 4);
  CHECK(fake_nccl().aborted == 0);
  CHECK(fake_nccl().windows == 0);
  fake_nccl().no_memory_on = 1;
  const auto grown = on_two_ranks([](comm::DeviceCommunicator& nccl, backend::Stream& stream) -> Status {
    fake_nccl().no_memory_on = -1;
    LANCET_TRY(nccl.make_window(256));
    fake_nccl().no_memory_on = 1;
    const auto window = nccl.make_window(512);
    std::vector<float> values(4);
    LANCET_TRY(nccl.all_reduce_sum(stream, values));
    LANCET_TRY(nccl.check());
    return window.ok() ? Status() : Status(window.error());
  });
  check_without(grown, 1, "no memory for a window");
}

TEST_CASE_METHOD(FreshNccl, "missing memory on one rank disables windows on all ranks, and communication continues") {
  fake_nccl().no_memory_on = 1;
  check_without(ask_for_windows(), 1, "no memory for a window");
  CHECK(fake_nccl().opened == 0);
  CHECK(fake_nccl().connected == 2);
}

TEST_CASE_METHOD(FreshNccl, "a refused window on one rank disables windows on all ranks, and all connect again") {
  fake_nccl().not_opened_on = 0;
  check_without(ask_for_windows(), 0, "NCCL: a window failed: remote process exited; as NCCL says it");
  CHECK(fake_nccl().opened == 2);
  CHECK(fake_nccl().connected == 4);
  CHECK(fake_nccl().aborted == 2);  // before the second connection
  CHECK(fake_nccl().destroyed == 2);
}

TEST_CASE_METHOD(FreshNccl, "a communicator ends after the kernels in its windows, or after a timeout") {
  const auto abort_after_kernel = [](comm::DeviceCommunicator& nccl, backend::Stream& stream) -> Status {
    LANCET_TRY(nccl.make_window(256));
    LANCET_TRY(nccl.in_windows(stream, [](backend::Stream&, const comm::Window&) { return Status(); }));
    if (nccl.rank() == 0) nccl.abort("a peer is gone");
    return {};
  };
  for (const Status& status : on_two_ranks(abort_after_kernel)) CHECK(status.ok());
  CHECK(fake_nccl().stopped == 1);
  CHECK(test::event_queries() == 1);
  test::event_queries() = 0;
  test::fake_runtime().event_state = cudaErrorNotReady;
  for (const Status& status : on_two_ranks(abort_after_kernel)) CHECK(status.ok());
  CHECK(test::event_queries() > 1);
  CHECK(fake_nccl().aborted == 2);
  CHECK(fake_nccl().destroyed == 2);
  CHECK(test::stream_queries() == 0);  // the stream of the pushes may be gone
}
