// Streams, flags, graphs and events of a GPU.
#include <atomic>
#include <chrono>
#include <future>

#include "lancet/backend/device.h"
#include "module.h"
#include "runtime/device_stream.h"

namespace lancet {
namespace {

using backend::Flag;

using test::done, test::made;

}  // namespace

TEST_CASE("the plugin loads with or without a driver, and reports what is missing") {
  const auto module = runtime::load_module(test::module_path());
  if (!module.ok()) FAIL(module.error().message);
  test::driver_started = true;
  const auto found = (*module)->count();
  if (found.ok()) {
    CHECK(*found > 0);
    return;
  }
  CHECK(found.error().code == ExitCode::config);
  CHECK(found.error().message.find("device: expected ") == 0);
}

TEST_CASE("memory is copied to the device and back") {
  const auto gpu = test::open_gpu();
  if (!gpu) return;
  backend::Device& device = gpu->device();
  CHECK(device.architecture().find("sm_") == 0);
  CHECK(device.identity().find(" at ") == 32);  // UUID and PCI address
  const auto stream = made(device.make_stream(false));
  std::byte* memory = made(device.allocate(1024));
  CHECK(reinterpret_cast<std::uintptr_t>(memory) % 256 == 0);
  auto* here = reinterpret_cast<int*>(made(device.allocate_host(1024)));
  CHECK(here[255] == 0);
  here[0] = 7, here[1] = 8;
  done(stream->copy(memory, here, 8));
  done(stream->zero(memory, 4));
  done(stream->copy(here + 2, memory, 8));
  done(stream->synchronize());
  CHECK(here[2] == 0);
  CHECK(here[3] == 8);
  device.free(memory);
  device.free_host(reinterpret_cast<std::byte*>(here));
  const auto refused = device.allocate(std::size_t{1} << 50);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().message.find("expected 1125899906842624 bytes of memory on ") == 0);
  done(stream->synchronize());  // the refusal does not affect the stream
}

TEST_CASE("flags join streams in either order of signal and wait, and the host can set them") {
  const auto gpu = test::open_gpu();
  if (!gpu) return;
  backend::Device& device = gpu->device();
  const auto first = made(device.make_stream(false)), second = made(device.make_stream(true));
  std::byte* memory = made(device.allocate(256));
  auto* here = reinterpret_cast<std::uint32_t*>(made(device.allocate_host(256)));
  Flag *flag = here, *host_flag = here + 1;
  std::uint32_t *from = here + 8, *to = here + 16;
  for (std::uint32_t round = 1; round < 50; ++round) {
    *flag = *host_flag = 0;
    *from = round;
    done(second->wait(flag));
    done(second->copy(to, memory, 4));
    done(second->wait(host_flag));
    done(first->delay(0.05));
    done(first->copy(memory, from, 4));
    done(first->signal(flag));
    std::atomic_ref(*host_flag).store(1);
    done(second->synchronize());
    CHECK(*to == round);
    done(first->synchronize());
  }
}

// Steps do this at every all-to-all. Opening the GPU has crossed its streams once.
TEST_CASE("probe: copies of two streams that wait for each other") {
  const auto gpu = test::open_gpu();
  if (!gpu) return;
  for (int round = 1; round < 50; ++round) done(runtime::cross_streams(gpu->device(), ir::stream_count));
}

// 600 commands: the 400 that may wait between marks, and 200 of a large instruction (src/runtime/device_stream.h).
TEST_CASE("a stream that waits takes as many commands as an executor leaves on it") {
  const auto gpu = test::open_gpu();
  if (!gpu) return;
  backend::Device& device = gpu->device();
  const auto stream = made(device.make_stream(false));
  std::byte* memory = made(device.allocate(256));
  auto* flag = reinterpret_cast<Flag*>(made(device.allocate_host(256)));
  const auto multiply = [&] { return stream->scale(reinterpret_cast<float*>(memory), 64, 1.f); };
  done(multiply());  // loads the kernel
  done(stream->synchronize());
  const auto event = made(device.make_event());
  done(stream->wait(flag));
  auto put = std::async(std::launch::async, [&]() -> Status {
    LANCET_TRY(device.bind_thread());
    for (std::size_t i = 0; i < runtime::Backlog::between_marks; ++i) {
      LANCET_TRY(stream->record(*event));
      LANCET_TRY(multiply());
      LANCET_TRY(stream->zero(memory, 256));
    }
    return {};
  });
  const bool in_time = put.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  std::atomic_ref(*flag).store(1);
  done(put.get());
  CHECK(in_time);
  done(stream->synchronize());
  device.free(memory);
  device.free_host(reinterpret_cast<std::byte*>(flag));
}

TEST_CASE("a graph runs at each launch, events measure, and a delay lasts its time") {
  const auto gpu = test::open_gpu();
  if (!gpu) return;
  backend::Device& device = gpu->device();
  const auto stream = made(device.make_stream(false));
  std::byte* memory = made(device.allocate(512));
  auto* here = reinterpret_cast<std::uint32_t*>(made(device.allocate_host(256)));
  here[0] = 5;
  done(stream->begin_capture());
  done(stream->copy(memory, here, 4));
  done(stream->copy(here + 1, memory, 4));
  const auto graph = made(stream->end_capture());
  done(stream->synchronize());
  CHECK(here[1] == 0);
  const auto before = made(device.make_event()), after = made(device.make_event());
  for (std::uint32_t value : {5u, 6u}) {
    here[0] = value;
    done(stream->launch(*graph));
    done(stream->record(*before));
    done(stream->delay(2));
    done(stream->record(*after));
    done(stream->synchronize());
    CHECK(here[1] == value);
    CHECK(made(device.milliseconds(*before, *after)) >= 2);
  }
}

TEST_CASE("a delay from a mark includes the work since the mark") {
  const auto gpu = test::open_gpu();
  if (!gpu) return;
  backend::Device& device = gpu->device();
  const auto stream = made(device.make_stream(false));
  const auto start = made(device.make_event()), before = made(device.make_event()), end = made(device.make_event());
  for (int turn = 0; turn < 3; ++turn) {
    done(stream->record(*start));
    done(stream->mark());
    done(stream->delay(20));
    done(stream->record(*before));
    done(stream->delay_from_mark(25));
    done(stream->record(*end));
    done(stream->synchronize());
    CHECK(made(device.milliseconds(*start, *end)) >= 24.5);
    CHECK(made(device.milliseconds(*before, *end)) < 15);
  }
}

TEST_CASE("the plugin finds its kernels by name") {
  const auto gpu = test::open_gpu();
  if (!gpu) return;
  CHECK(gpu->find_kernel("zero"));
  CHECK_FALSE(gpu->find_kernel("frobnicate"));
}

}  // namespace lancet
