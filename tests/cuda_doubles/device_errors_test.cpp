// The errors that users read if a GPU cannot be used; a fake CUDA runtime plays the machine of each.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>
#include <utility>

#include "fake_runtime.h"
#include "good.h"
#include "lancet/backend/cuda/device.h"
#include "lancet/backend/cuda/kernel_list.h"
#include "lancet/backend/device.h"
#include "log_capture.h"

using namespace lancet;
using test::fake_runtime;

namespace {

const char kernels[2] = {};
[[maybe_unused]] const bool listed[] = {backend::cuda::list_kernel(&kernels[0]),
                                        backend::cuda::list_kernel(&kernels[1])};

Error count_error() {
  const Error count = test::refused(backend::cuda::count_devices());
  return count;
}

std::unique_ptr<backend::Device> opened() {
  auto device = test::good(backend::cuda::open_device(0));
  return std::move(device).value();
}

struct Fresh {
  Fresh() {
    fake_runtime() = {};
    ::unsetenv("CUDA_LAUNCH_BLOCKING");
  }
};

}  // namespace

TEST_CASE_METHOD(Fresh, "a missing, old or broken driver and a missing GPU are reported") {
  fake_runtime().count_error = cudaErrorInsufficientDriver;
  fake_runtime().driver_version = 0;
  CHECK(count_error().code == ExitCode::config);
  CHECK(count_error().message == "device: expected an NVIDIA driver for CUDA 13.0, found none");
  fake_runtime().driver_version = 12040;
  CHECK(count_error().message == "device: expected an NVIDIA driver for CUDA 13.0, found one for CUDA 12.4");
  fake_runtime().count_error = cudaErrorNoDevice;
  CHECK(count_error().message == "device: expected a GPU that this process may use (CUDA_VISIBLE_DEVICES), found none");
  fake_runtime().count_error = cudaErrorSystemNotReady;
  CHECK(count_error().message ==
        "device: expected a working NVIDIA driver, found: as the driver says it (cudaErrorOfTheTest)");
  fake_runtime().count_error = cudaSuccess;
  fake_runtime().devices = 0;
  CHECK(count_error().message == "device: expected a GPU that this process may use (CUDA_VISIBLE_DEVICES), found none");
  fake_runtime().devices = 8;
  CHECK(*backend::cuda::count_devices() == 8);
}

TEST_CASE_METHOD(Fresh, "streams that wait for each other get enough hardware queues, whatever the environment says") {
  fake_runtime().devices = 1;
  for (const std::string set : {"", "1", "junk", "8", "31", "32", "64"}) {
    const test::LogCapture log;
    if (set.empty())
      ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    else
      ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", set.c_str(), 1);
    REQUIRE(backend::cuda::count_devices().ok());
    CHECK(std::string(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS")) == "32");
    const bool other = !set.empty() && set != "32";
    CHECK(log.text() == (other ? "warning: CUDA_DEVICE_MAX_CONNECTIONS=" + set +
                                     ": expected 32, since streams wait for each other; using 32\n"
                               : ""));
  }
}

TEST_CASE_METHOD(Fresh, "launches that block the host are refused") {
  for (const char* set : {"1", "2"}) {
    ::setenv("CUDA_LAUNCH_BLOCKING", set, 1);
    CHECK(count_error().code == ExitCode::config);
    CHECK(count_error().message ==
          std::string("device: expected CUDA_LAUNCH_BLOCKING unset or 0, since streams wait for each other, found ") +
              set);
  }
  ::setenv("CUDA_LAUNCH_BLOCKING", "0", 1);
  CHECK(backend::cuda::count_devices().ok());
}

TEST_CASE_METHOD(Fresh, "a GPU whose architecture the build lacks is refused") {
  fake_runtime().code_error = cudaErrorNoKernelImageForDevice;
  fake_runtime().name = "Tesla V100-SXM2-32GB";
  fake_runtime().major = 7;
  const Error device = test::refused(backend::cuda::open_device(0));
  CHECK(device.code == ExitCode::config);
  CHECK(device.message ==
        "device: expected a GPU that code for the architectures 80, 90 runs on (CMAKE_CUDA_ARCHITECTURES of this "
        "build), found Tesla V100-SXM2-32GB of 7.0");
  CHECK(fake_runtime().cleared > 0);  // the error must not show up in the next call
}

TEST_CASE_METHOD(Fresh, "all listed kernels are loaded when a GPU is opened") {
  opened();
  CHECK(fake_runtime().loaded == std::vector<const void*>{&kernels[0], &kernels[1]});
}

TEST_CASE_METHOD(Fresh, "a driver that cannot join streams is refused") {
  fake_runtime().has_flag_calls = false;
  const Error device = test::refused(backend::cuda::open_device(0));
  CHECK(device.code == ExitCode::config);
  CHECK(device.message ==
        "device: expected a driver with cuStreamWriteValue32 and cuStreamWaitValue32, found one without");
}

TEST_CASE_METHOD(Fresh, "too little memory is reported with the requested and the free bytes") {
  const auto device = opened();
  const Error memory = test::refused(device->allocate(1'000'001));
  CHECK(memory.code == ExitCode::config);
  CHECK(memory.message == "expected 1000001 bytes of memory on NVIDIA Test, found 1000000 free");
  const Error host = test::refused(device->allocate_host(1'000'001));
  CHECK(host.message == "cannot allocate 1000001 bytes of page-locked host memory");
}

TEST_CASE_METHOD(Fresh, "a GPU is identified by its UUID and its PCI address") {
  fake_runtime().uuid = 0x2a;
  CHECK(opened()->identity() == "2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a2a at 0000:17:00.0");
  CHECK(opened()->architecture() == "sm_90");
}

TEST_CASE_METHOD(Fresh, "a GPU tells what launches depend on") {
  fake_runtime().major = 8, fake_runtime().minor = 6;
  const auto device = opened();
  CHECK(device->traits().capability == 86);
  CHECK(device->traits().multiprocessors == 132);
  CHECK(device->traits().shared_bytes_of_block == 227 * 1024);
}

TEST_CASE_METHOD(Fresh, "communication streams have a higher priority than compute streams") {
  const auto device = opened();
  REQUIRE(device->make_stream(false).ok());
  REQUIRE(device->make_stream(true).ok());
  CHECK(fake_runtime().priorities == std::vector<int>{0, -5});
}

TEST_CASE_METHOD(Fresh, "a stream reports whether it is empty, and its error") {
  const auto device = opened();
  auto stream = test::good(device->make_stream(true));
  CHECK(*(*stream)->idle());
  fake_runtime().stream_state = cudaErrorNotReady;
  const auto busy = test::good((*stream)->idle());
  CHECK_FALSE(*busy);
  fake_runtime().stream_state = cudaErrorIllegalAddress;
  const Error broken = test::refused((*stream)->idle());
  CHECK(broken.message == "the stream's work: as the driver says it (cudaErrorOfTheTest)");
}

TEST_CASE_METHOD(Fresh, "a wait for a flag ends with the error of its stream, for which the driver is rarely asked") {
  const auto device = opened();
  const auto stream = test::good(device->make_stream(true));
  test::stream_queries() = 0;
  fake_runtime().stream_state = cudaErrorNotReady;
  const auto start = std::chrono::steady_clock::now();
  std::chrono::nanoseconds took{0};
  for (; took < std::chrono::milliseconds(2); took = std::chrono::steady_clock::now() - start)
    REQUIRE((*stream)->watch().ok());
  CHECK(test::stream_queries() >= 1);
  CHECK(test::stream_queries() <= took / std::chrono::microseconds(200) + 1);
  fake_runtime().stream_state = cudaErrorIllegalAddress;
  backend::Flag flag = 0;
  const Error status = test::refused(backend::wait_for_flag(&flag, **stream));
  CHECK(status.message == "the stream's work: as the driver says it (cudaErrorOfTheTest)");
}

TEST_CASE_METHOD(Fresh, "a delay from a mark needs a mark") {
  const auto device = opened();
  auto stream = test::good(device->make_stream(true));
  const Error early = test::refused((*stream)->delay_from_mark(1));
  CHECK(early.message == "expected a mark on the stream before a delay from it, found none");
  REQUIRE((*stream)->mark().ok());
  CHECK((*stream)->delay_from_mark(1).ok());
}
