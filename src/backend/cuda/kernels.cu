#include "kernels.h"

#include <algorithm>

#include "check.h"
#include "copy_table.h"
#include "lancet/backend/cuda/kernel_list.h"
#include "lancet/base/rounding.h"

namespace lancet::backend::cuda {
namespace {

constexpr unsigned copy_threads = 512;

__global__ void __launch_bounds__(copy_threads) run_copies(const __grid_constant__ CopyTable table) {
  for (int number = int(blockIdx.y); number < table.count; number += int(gridDim.y))
    table.run(number, std::size_t(blockIdx.x) * blockDim.x + threadIdx.x, std::size_t(gridDim.x) * blockDim.x);
}

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

// Box and Muller's method on two hashes of the element's index.
template <class T>
__global__ void write_normals(T* values, std::size_t count, std::uint32_t seed) {
  for (std::size_t i = std::size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += std::size_t(gridDim.x) * blockDim.x) {
    const std::uint32_t a = RoundingBits(seed, 0)(std::int64_t(i)), b = RoundingBits(seed, 1)(std::int64_t(i));
    const float radius = sqrtf(-2.f * logf((float(a >> 8) + 1.f) * 0x1p-24f));
    values[i] = from_f32<T>(radius * cospif(float(b >> 8) * 0x1p-23f));
  }
}

[[maybe_unused]] const bool listed[] = {list_kernel(reinterpret_cast<const void*>(run_copies)),
                                        list_kernel(reinterpret_cast<const void*>(wait_for)),
                                        list_kernel(reinterpret_cast<const void*>(write_time)),
                                        list_kernel(reinterpret_cast<const void*>(multiply)),
                                        list_kernel(reinterpret_cast<const void*>(write_normals<bf16>)),
                                        list_kernel(reinterpret_cast<const void*>(write_normals<float>))};

}  // namespace

Status copy_all(std::span<const Copy> copies, int blocks, cudaStream_t stream) {
  if (copies.size() == 1) {
    const Copy& copy = copies.front();
    return check(cudaMemcpyAsync(copy.to, copy.from, copy.bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
  }
  while (!copies.empty()) {
    CopyTable table{};
    table.count = int(std::min(copies.size(), std::size_t{CopyTable::most}));
    std::copy_n(copies.begin(), table.count, table.copies);
    const int at_once = std::min(table.count, blocks);
    run_copies<<<dim3(unsigned(blocks / at_once), unsigned(at_once)), copy_threads, 0, stream>>>(table);
    LANCET_TRY(launched("copies"));
    copies = copies.subspan(std::size_t(table.count));
  }
  return {};
}

std::size_t copy_commands(std::size_t copies) { return (copies + CopyTable::most - 1) / CopyTable::most; }

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

Status fill_normals(void* values, DType dtype, std::size_t count, std::uint32_t seed, cudaStream_t stream) {
  constexpr std::size_t threads = 256, most_blocks = 1024;
  const auto blocks = static_cast<unsigned>(std::clamp<std::size_t>((count + threads - 1) / threads, 1, most_blocks));
  if (dtype == DType::bf16)
    write_normals<<<blocks, threads, 0, stream>>>(static_cast<bf16*>(values), count, seed);
  else
    write_normals<<<blocks, threads, 0, stream>>>(static_cast<float*>(values), count, seed);
  return launched("normal random numbers");
}

}  // namespace lancet::backend::cuda
