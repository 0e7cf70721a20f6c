// A fake CUDA runtime that answers as a test sets it: the errors of machines that are not at hand.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <atomic>
#include <string>
#include <vector>

namespace lancet::test {

// The arguments of cuTensorMapEncodeTiled.
struct Encoded {
  CUtensorMapDataType type;
  cuuint32_t rank;
  void* data;
  cuuint64_t extents[2], stride;
  cuuint32_t tile[2], steps[2];
  CUtensorMapSwizzle swizzle;
};

struct FakeRuntime {
  int runtime_version = 13000, driver_version = 13000;
  int devices = 1;
  int device = 0;  // the calling thread's
  cudaError_t count_error = cudaSuccess;
  cudaError_t code_error = cudaSuccess;  // the result of cudaFuncGetAttributes
  std::vector<const void*> loaded;       // the kernels of its calls
  bool has_flag_calls = true;
  std::size_t free = 1'000'000, total = 2'000'000;
  std::string name = "NVIDIA Test";
  int major = 9, minor = 0;
  unsigned char uuid = 0x11;  // every byte has this value
  int pci_bus = 0x17;
  cudaError_t stream_state = cudaSuccess;  // the result of cudaStreamQuery
  cudaError_t event_state = cudaSuccess;   // the result of cudaEventQuery
  std::vector<int> priorities;             // of the streams that were made
  int cleared = 0;                         // calls of cudaGetLastError
  Encoded encoded{};
  CUresult encode_error = CUDA_SUCCESS;
  float clock_ms = 0;  // the time that an event records
};
FakeRuntime& fake_runtime();
std::atomic<int>& stream_queries();  // calls of cudaStreamQuery
std::atomic<int>& event_queries();   // calls of cudaEventQuery

}  // namespace lancet::test
