#include <algorithm>

#include "check.h"
#include "delay.h"
#include "lancet/backend/cuda/kernel_list.h"

namespace lancet::backend::cuda {
namespace {

__device__ unsigned long long device_time() {
  unsigned long long now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Waits with one thread, which occupies a small share of one multiprocessor, as a copy that waits for the network
// would. mark: the time from which the wait counts; null: now.
__global__ void wait_for(const unsigned long long* mark, unsigned long long nanoseconds) {
  const unsigned long long start = mark ? *mark : device_time();
  while (device_time() - start < nanoseconds) __nanosleep(500);
}

__global__ void write_time(unsigned long long* mark) { *mark = device_time(); }

__global__ void multiply(float* values, std::size_t count, float factor) {
  for (std::size_t i = std::size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += std::size_t(gridDim.x) * blockDim.x)
    values[i] *= factor;
}

[[maybe_unused]] const bool listed[] = {list_kernel(reinterpret_cast<const void*>(wait_for)),
                                        list_kernel(reinterpret_cast<const void*>(write_time)),
                                        list_kernel(reinterpret_cast<const void*>(multiply))};

}  // namespace

Status scale(float* values, std::size_t count, float factor, cudaStream_t stream) {
  constexpr std::size_t threads = 256, most_blocks = 1024;
  if (count == 0) return {};
  const auto blocks = static_cast<unsigned>(std::min(most_blocks, (count + threads - 1) / threads));
  multiply<<<blocks, threads, 0, stream>>>(values, count, factor);
  return launched("scale");
}

Status delay(double milliseconds, cudaStream_t stream) {
  if (milliseconds <= 0) return {};
  return delay_from(nullptr, milliseconds, stream);
}

Status mark(unsigned long long* mark, cudaStream_t stream) {
  write_time<<<1, 1, 0, stream>>>(mark);
  return launched("a mark of the time");
}

Status delay_from(const unsigned long long* mark, double milliseconds, cudaStream_t stream) {
  wait_for<<<1, 1, 0, stream>>>(mark, static_cast<unsigned long long>(std::max(milliseconds, 0.0) * 1e6));
  return launched("delay");
}

}  // namespace lancet::backend::cuda
