#include "lancet/backend/cuda/device.h"

#include <cudaTypedefs.h>
#include <fmt/format.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "check.h"
#include "lancet/backend/cuda/kernel_list.h"
#include "lancet/base/log.h"
#include "stream.h"

namespace lancet::backend::cuda {
namespace {

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

Error without_driver(cudaError_t error) {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (error == cudaErrorInsufficientDriver || error == cudaErrorStubLibrary)
    return config_error(fmt::format("device: expected an NVIDIA driver for CUDA {}, found {}", version_text(runtime),
                                    driver > 0 ? "one for CUDA " + version_text(driver) : std::string("none")));
  if (error == cudaErrorNoDevice)
    return config_error("device: expected a GPU that this process may use (CUDA_VISIBLE_DEVICES), found none");
  return config_error(fmt::format("device: expected a working NVIDIA driver, found: {} ({})", cudaGetErrorString(error),
                                  cudaGetErrorName(error)));
}

DeviceTraits traits_of(const cudaDeviceProp& p) {
  return {.capability = 10 * p.major + p.minor,
          .multiprocessors = p.multiProcessorCount,
          .shared_bytes_of_block = std::int64_t(p.sharedMemPerBlockOptin),
          .shared_bytes_of_multiprocessor = std::int64_t(p.sharedMemPerMultiprocessor)};
}

class CudaEvent final : public Event {
 public:
  static Result<std::unique_ptr<Event>> make() {
    auto event = std::make_unique<CudaEvent>();
    LANCET_TRY(check(cudaEventCreate(&event->event_), "cudaEventCreate"));
    return std::unique_ptr<Event>(std::move(event));
  }
  ~CudaEvent() override {
    if (event_) cudaEventDestroy(event_);
  }
  cudaEvent_t native() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaDevice final : public Device {
 public:
  static Result<std::unique_ptr<Device>> open(int index) {
    auto device = std::make_unique<CudaDevice>();
    device->index_ = index;
    LANCET_TRY(check(cudaSetDevice(index), "cudaSetDevice"));
    LANCET_TRY(check(cudaGetDeviceProperties(&device->properties_, index), "cudaGetDeviceProperties"));
    for (const void* kernel : listed_kernels()) LANCET_TRY(device->load(kernel));
    device->traits_ = traits_of(device->properties_);
    LANCET_ASSIGN(device->flags_, FlagCalls::find());
    // CUDA returns the least urgent priority first; a smaller number is more urgent.
    LANCET_TRY(check(cudaDeviceGetStreamPriorityRange(&device->least_urgent_, &device->most_urgent_),
                     "cudaDeviceGetStreamPriorityRange"));
    return std::unique_ptr<Device>(std::move(device));
  }

  std::string name() const override { return properties_.name; }
  std::string architecture() const override { return fmt::format("sm_{}{}", properties_.major, properties_.minor); }
  const DeviceTraits& traits() const override { return traits_; }
  std::string identity() const override {
    std::string text;
    for (char byte : properties_.uuid.bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    return text + fmt::format(" at {:04x}:{:02x}:{:02x}.0", properties_.pciDomainID, properties_.pciBusID,
                              properties_.pciDeviceID);
  }
  std::int64_t free_bytes() const override {
    std::size_t free = 0, total = 0;
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? static_cast<std::int64_t>(free) : 0;
  }
  Status bind_thread() override { return check(cudaSetDevice(index_), "cudaSetDevice"); }

  Result<std::byte*> allocate(std::size_t bytes) override {
    void* memory = nullptr;
    const cudaError_t error = cudaMalloc(&memory, bytes);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // so that the next call does not report it again
      return config_error(fmt::format("expected {} bytes of memory on {}, found {} free", bytes, name(), free_bytes()));
    }
    LANCET_TRY(check(error, "cudaMalloc"));
    return static_cast<std::byte*>(memory);
  }
  void free(std::byte* memory) override { cudaFree(memory); }

  Result<std::byte*> allocate_host(std::size_t bytes) override {
    void* memory = nullptr;
    const cudaError_t error = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return config_error(fmt::format("cannot allocate {} bytes of page-locked host memory", bytes));
    }
    LANCET_TRY(check(error, "cudaHostAlloc"));
    std::fill_n(static_cast<std::byte*>(memory), bytes, std::byte{});
    return static_cast<std::byte*>(memory);
  }
  void free_host(std::byte* memory) override { cudaFreeHost(memory); }

  Result<std::unique_ptr<Stream>> make_stream(bool urgent) override {
    // A block for every fourth multiprocessor makes copies, so that most are left to computation beside them; each has
    // 32 KB of loads in flight.
    const int copy_blocks = std::max(traits_.multiprocessors / 4, 1);
    return cuda::make_stream(flags_, urgent ? most_urgent_ : least_urgent_, copy_blocks);
  }
  Result<std::unique_ptr<Event>> make_event() override { return CudaEvent::make(); }
  Result<double> milliseconds(Event& from, Event& to) override {
    float time = 0;
    LANCET_TRY(check(cudaEventElapsedTime(&time, native_event(from), native_event(to)), "cudaEventElapsedTime"));
    return double(time);
  }
  void begin_range(const std::string& name) override { nvtxRangePushA(name.c_str()); }
  void end_range() override { nvtxRangePop(); }

 private:
  // Loads a kernel, of which the query for its attributes is a documented way.
  Status load(const void* kernel) const {
    cudaFuncAttributes attributes{};
    const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
      cudaGetLastError();
      return config_error(
          fmt::format("device: expected a GPU that code for the architectures {} runs on (CMAKE_CUDA_ARCHITECTURES of "
                      "this build), found {} of {}.{}",
                      LANCET_CUDA_ARCHITECTURES, name(), properties_.major, properties_.minor));
    }
    return check(error, "cudaFuncGetAttributes");
  }

  int index_ = 0, least_urgent_ = 0, most_urgent_ = 0;
  cudaDeviceProp properties_{};
  DeviceTraits traits_;
  FlagCalls flags_;
};

}  // namespace

cudaEvent_t native_event(Event& event) { return static_cast<CudaEvent&>(event).native(); }

// A stream that waits for a flag must not share a hardware queue with the stream that sets it. The environment may hold
// a lower number of queues, set for other programs; 32 is the most that CUDA takes.
void take_all_hardware_queues() {
  const char* found = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  if (found && std::string_view(found) != "32")
    log::warn("CUDA_DEVICE_MAX_CONNECTIONS={}: expected 32, since streams wait for each other; using 32", found);
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
}

// With blocking launches a thread cannot put the work that a stream waits for behind that wait.
Status check_launches_return() {
  const char* found = std::getenv("CUDA_LAUNCH_BLOCKING");
  if (!found || std::atoi(found) == 0) return {};
  return config_error(fmt::format(
      "device: expected CUDA_LAUNCH_BLOCKING unset or 0, since streams wait for each other, found {}", found));
}

Result<int> count_devices() {
  LANCET_TRY(check_launches_return());
  take_all_hardware_queues();
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return without_driver(error);
  if (count == 0) return without_driver(cudaErrorNoDevice);
  return count;
}

Result<std::unique_ptr<Device>> open_device(int index) { return CudaDevice::open(index); }

}  // namespace lancet::backend::cuda
