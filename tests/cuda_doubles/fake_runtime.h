// A CUDA runtime that says what a test tells it to, in place of the real one: the errors of machines that are not here.
#pragma once
#include <cuda_runtime.h>

#include <atomic>
#include <string>
#include <vector>

namespace lancet::test {

struct FakeRuntime {
  int runtime_version = 13000, driver_version = 13000;
  int devices = 1;
  cudaError_t count_error = cudaSuccess;
  cudaError_t code_error = cudaSuccess;  // of whether there is code for the GPU
  bool has_flag_calls = true;
  std::size_t free = 1'000'000, total = 2'000'000;
  std::string name = "NVIDIA Test";
  int major = 9, minor = 0;
  unsigned char uuid = 0x11;  // each byte of it
  int pci_bus = 0x17;
  cudaError_t stream_state = cudaSuccess;  // what cudaStreamQuery finds
  std::vector<int> priorities;             // of the streams made
  int cleared = 0;                         // calls of cudaGetLastError
};
FakeRuntime& fake_runtime();
std::atomic<int>& stream_queries();  // calls of cudaStreamQuery

}  // namespace lancet::test
