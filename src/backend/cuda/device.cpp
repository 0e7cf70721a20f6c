#include "lancet/backend/cuda/device.h"

#include <cudaTypedefs.h>
#include <fmt/format.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string_view>

#include "check.h"
#include "kernels.h"
#include "lancet/backend/cuda/kernel_list.h"
#include "lancet/base/log.h"

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
          .shared_bytes_of_block = std::int64_t(p.sharedMemPerBlockOptin)};
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

// The driver's calls for flags, looked up at run time, so that the plugin loads on machines without the driver.
struct FlagCalls {
  PFN_cuStreamWriteValue32_v11070 write = nullptr;
  PFN_cuStreamWaitValue32_v11070 wait = nullptr;
  // Config error: the driver lacks them.
  static Result<FlagCalls> find() {
    FlagCalls calls;
    if (!find_call("cuStreamWriteValue32", 11070, calls.write) || !find_call("cuStreamWaitValue32", 11070, calls.wait))
      return config_error(
          "device: expected a driver with cuStreamWriteValue32 and cuStreamWaitValue32, found one without");
    return calls;
  }
};

Status check_driver(CUresult error, const char* what) {
  if (error == CUDA_SUCCESS) return {};
  return internal_error(fmt::format("{}: driver error {}", what, static_cast<int>(error)));
}

class CudaGraph final : public Graph {
 public:
  explicit CudaGraph(cudaGraphExec_t graph) : graph_(graph) {}
  ~CudaGraph() override { cudaGraphExecDestroy(graph_); }
  cudaGraphExec_t native() const { return graph_; }

 private:
  cudaGraphExec_t graph_;
};

class CudaStream final : public Stream {
 public:
  CudaStream(cudaStream_t stream, const FlagCalls& flags, int copy_blocks)
      : stream_(stream), flags_(flags), copy_blocks_(copy_blocks) {}
  ~CudaStream() override {
    cudaStreamDestroy(stream_);
    cudaFree(mark_);
  }

  Status copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes == 0) return {};
    return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync");
  }
  Status copy_all(std::span<const Copy> copies) override { return cuda::copy_all(copies, copy_blocks_, stream_); }
  std::size_t copy_commands(std::size_t copies) const override { return cuda::copy_commands(copies); }
  Status zero(void* memory, std::size_t bytes) override {
    if (bytes == 0) return {};
    return check(cudaMemsetAsync(memory, 0, bytes, stream_), "cudaMemsetAsync");
  }
  // The write is ordered after a fence, so a reader that sees the flag sees all earlier writes of the stream.
  Status signal(Flag* flag) override {
    return check_driver(flags_.write(stream_, address(flag), 1, CU_STREAM_WRITE_VALUE_DEFAULT), "cuStreamWriteValue32");
  }
  Status wait(Flag* flag) override {
    return check_driver(flags_.wait(stream_, address(flag), 1, CU_STREAM_WAIT_VALUE_EQ), "cuStreamWaitValue32");
  }
  Status record(Event& event) override {
    return check(cudaEventRecord(static_cast<CudaEvent&>(event).native(), stream_), "cudaEventRecord");
  }
  Status scale(float* values, std::size_t count, float factor) override {
    return cuda::scale(values, count, factor, stream_);
  }
  Status delay(double milliseconds) override { return cuda::delay(milliseconds, stream_); }
  Status mark() override {
    if (!mark_) {
      void* memory = nullptr;
      LANCET_TRY(check(cudaMalloc(&memory, sizeof *mark_), "cudaMalloc"));
      mark_ = static_cast<unsigned long long*>(memory);
    }
    return cuda::mark(mark_, stream_);
  }
  Status delay_from_mark(double milliseconds) override {
    if (!mark_) return internal_error("expected a mark on the stream before a delay from it, found none");
    return cuda::delay_from(mark_, milliseconds, stream_);
  }

  // The capture restricts this thread only; threads of other streams may allocate and synchronize meanwhile.
  Status begin_capture() override {
    return check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  }
  Result<std::unique_ptr<Graph>> end_capture() override {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    if (const Status ended = check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture"); !ended.ok()) {
      cudaGetLastError();  // the stream remains usable
      return ended.error();
    }
    const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphDestroy(graph);
    LANCET_TRY(check(error, "cudaGraphInstantiate"));
    LANCET_TRY(check(cudaGraphUpload(executable, stream_), "cudaGraphUpload"));
    return std::unique_ptr<Graph>(std::make_unique<CudaGraph>(executable));
  }
  Status launch(Graph& graph) override {
    return check(cudaGraphLaunch(static_cast<CudaGraph&>(graph).native(), stream_), "cudaGraphLaunch");
  }
  Status synchronize() override { return check(cudaStreamSynchronize(stream_), "the stream's work"); }
  Result<bool> idle() override {
    const cudaError_t error = cudaStreamQuery(stream_);
    if (error == cudaErrorNotReady) {
      cudaGetLastError();  // so that the next call does not report it
      return false;
    }
    LANCET_TRY(check(error, "the stream's work"));
    return true;
  }
  // A query takes the driver's lock, which the threads that put work on streams need.
  Status watch() override {
    constexpr std::chrono::microseconds between_queries(200);
    const auto now = std::chrono::steady_clock::now();
    if (now - queried_ < between_queries) return {};
    queried_ = now;
    LANCET_TRY(idle());
    return {};
  }
  void* native() override { return stream_; }

 private:
  static CUdeviceptr address(Flag* flag) { return reinterpret_cast<CUdeviceptr>(flag); }
  cudaStream_t stream_;
  FlagCalls flags_;
  const int copy_blocks_;
  unsigned long long* mark_ = nullptr;  // on the device
  std::chrono::steady_clock::time_point queried_{};
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
  std::int64_t memory_bytes() const override { return static_cast<std::int64_t>(properties_.totalGlobalMem); }
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
    cudaStream_t stream = nullptr;
    LANCET_TRY(
        check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? most_urgent_ : least_urgent_),
              "cudaStreamCreate"));
    return std::unique_ptr<Stream>(std::make_unique<CudaStream>(stream, flags_, copy_blocks));
  }
  Result<std::unique_ptr<Event>> make_event() override { return CudaEvent::make(); }
  Result<double> milliseconds(Event& from, Event& to) override {
    float time = 0;
    LANCET_TRY(
        check(cudaEventElapsedTime(&time, static_cast<CudaEvent&>(from).native(), static_cast<CudaEvent&>(to).native()),
              "cudaEventElapsedTime"));
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
