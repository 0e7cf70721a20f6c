#include "fake_runtime.h"

#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstdlib>
#include <cstring>

#include "backend/cuda/kernels.h"

using lancet::test::fake_runtime;

namespace lancet::test {
FakeRuntime& fake_runtime() {
  static FakeRuntime runtime;
  return runtime;
}
std::atomic<int>& stream_queries() {
  static std::atomic<int> count;
  return count;
}
std::atomic<int>& event_queries() {
  static std::atomic<int> count;
  return count;
}
}  // namespace lancet::test

namespace {
int handle;
template <class T>
cudaError_t give(T* to) {
  *to = reinterpret_cast<T>(&handle);
  return cudaSuccess;
}
CUresult flag_call() { return CUDA_SUCCESS; }
CUresult encode(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data, const cuuint64_t* extents,
                const cuuint64_t* strides, const cuuint32_t* tile, const cuuint32_t* steps, CUtensorMapInterleave,
                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  fake_runtime().encoded = {
      type, rank, data, {extents[0], extents[1]}, strides[0], {tile[0], tile[1]}, {steps[0], steps[1]}, swizzle};
  map->opaque[15] = 7;
  return fake_runtime().encode_error;
}
}  // namespace

extern "C" {
// The device count is unchanged on an error, as in the real runtime.
cudaError_t cudaGetDeviceCount(int* count) {
  if (fake_runtime().count_error == cudaSuccess) *count = fake_runtime().devices;
  return fake_runtime().count_error;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = fake_runtime().driver_version;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = fake_runtime().runtime_version;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) { return "as the driver says it"; }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorOfTheTest"; }
cudaError_t cudaGetLastError() {
  ++fake_runtime().cleared;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strncpy(properties->name, fake_runtime().name.c_str(), sizeof(properties->name) - 1);
  std::memset(properties->uuid.bytes, fake_runtime().uuid, sizeof(properties->uuid.bytes));
  properties->multiProcessorCount = 132;
  properties->sharedMemPerBlockOptin = 227 * 1024;
  properties->major = fake_runtime().major;
  properties->minor = fake_runtime().minor;
  properties->pciBusID = fake_runtime().pci_bus;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0, *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  if (std::strcmp(name, "cuTensorMapEncodeTiled") == 0) {
    *function = reinterpret_cast<void*>(encode);
    *result = cudaDriverEntryPointSuccess;
    return cudaSuccess;
  }
  *function = fake_runtime().has_flag_calls ? reinterpret_cast<void*>(flag_call) : nullptr;
  *result = fake_runtime().has_flag_calls ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void* kernel) {
  fake_runtime().loaded.push_back(kernel);
  return fake_runtime().code_error;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = fake_runtime().free, *total = fake_runtime().total;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  if (bytes > fake_runtime().free) return cudaErrorMemoryAllocation;
  *memory = std::malloc(bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) { return cudaMalloc(memory, bytes); }
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  fake_runtime().priorities.push_back(priority);
  return give(stream);
}
cudaError_t cudaStreamQuery(cudaStream_t) {
  ++lancet::test::stream_queries();
  return fake_runtime().stream_state;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return fake_runtime().stream_state; }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) { return cudaSuccess; }
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) { return give(graph); }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* graph, cudaGraph_t, unsigned long long) { return give(graph); }
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = reinterpret_cast<cudaEvent_t>(new float(0));
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
cudaError_t cudaEventQuery(cudaEvent_t) {
  ++lancet::test::event_queries();
  return fake_runtime().event_state;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<float*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  *reinterpret_cast<float*>(event) = fake_runtime().clock_ms;
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  *ms = *reinterpret_cast<float*>(to) - *reinterpret_cast<float*>(from);
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = fake_runtime().device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 1 << 20;  // the size of the L2 cache
  return cudaSuccess;
}
}  // extern "C"

namespace lancet::backend::cuda {
Status delay(double, cudaStream_t) { return {}; }
Status mark(unsigned long long*, cudaStream_t) { return {}; }
Status delay_from(const unsigned long long*, double, cudaStream_t) { return {}; }
Status scale(float*, std::size_t, float, cudaStream_t) { return {}; }
Status copy_all(std::span<const Copy>, int, cudaStream_t) { return {}; }
std::size_t copy_commands(std::size_t) { return 1; }
}  // namespace lancet::backend::cuda
