#include "normals.h"

#include <algorithm>

#include "check.h"
#include "lancet/backend/cuda/kernel_list.h"
#include "lancet/base/rounding.h"

namespace lancet::backend::cuda {
namespace {

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

[[maybe_unused]] const bool listed[] = {list_kernel(reinterpret_cast<const void*>(write_normals<bf16>)),
                                        list_kernel(reinterpret_cast<const void*>(write_normals<float>))};

}  // namespace

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
