// Streams that wait for each other, tried when a device is opened.
#include <catch2/catch.hpp>

#include "good.h"
#include "host_accelerator.h"
#include "lancet/ir/program.h"
#include "lancet/runtime/accelerator.h"

using namespace std::chrono_literals;

namespace lancet::runtime {
namespace {

std::atomic<int> opened_streams{0};

}  // namespace

TEST_CASE("opening a device crosses its streams") {
  const AcceleratorModule module = {"test", nullptr, [](int) -> Result<std::unique_ptr<Accelerator>> {
                                      return std::unique_ptr<Accelerator>(std::make_unique<test::HostAccelerator>(
                                          test::HostQueueOptions{.streams = &opened_streams}));
                                    }};
  for (const std::int64_t stages : {1, 4}) {
    opened_streams = 0;
    const auto opened = test::good(open_device(module, 0, stages));
    CHECK(opened_streams == (stages == 1 ? 3 : 7));
  }
}

TEST_CASE("the streams of a device cross, and are those that executors get") {
  std::atomic<int> streams{0};
  const auto device = test::make_host_queue({.pause_us = 200, .seed = 1, .streams = &streams});
  for (const int number : {3, 7}) {
    const Status crossed = cross_streams(*device, number);
    CHECK(crossed.ok());
    CHECK(streams == number);
  }
  for (std::size_t stream = 0; stream < 7; ++stream) {
    const auto shared = test::good(device->shared_stream(stream));
    CHECK(*(*shared)->idle());
  }
  CHECK(streams == 7);
  CHECK(device->free_bytes() == std::int64_t{1} << 40);
}

TEST_CASE("streams that block each other are refused in one line after the deadline") {
  const auto device = test::make_host_queue({.one_queue = true});
  const auto start = std::chrono::steady_clock::now();
  const Error crossed = test::refused(cross_streams(*device, 3, 300ms));
  CHECK(crossed.code == ExitCode::config);
  CHECK(crossed.message ==
        "device: expected streams of host queue that wait for each other to end within 0.3 s, found that they block "
        "each other; MPS or a debugger may leave them too few hardware queues");
  const auto took = std::chrono::steady_clock::now() - start;
  CHECK(took >= 300ms);
  CHECK(took < 3s);
  CHECK(device->free_bytes() == std::int64_t{1} << 40);  // the streams ended once the host had set their flags
}

TEST_CASE("copies that have not ended where a flag says so are refused in one line") {
  const auto device = test::make_host_queue({.dropped_copy = GENERATE(1, 2, 3, 4, 23)});  // of 24
  const Error crossed = test::refused(cross_streams(*device, 3));
  CHECK(crossed.code == ExitCode::config);
  CHECK(crossed.message.find("device: expected copies between the streams of host queue to have ended where a "
                             "flag says so: 0x5eed000") == 0);
  CHECK(device->free_bytes() == std::int64_t{1} << 40);
}

}  // namespace lancet::runtime
