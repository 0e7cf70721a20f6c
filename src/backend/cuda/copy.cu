#include "copy.h"

#include <algorithm>

#include "check.h"
#include "copy_table.h"

namespace lancet::backend::cuda {
namespace {

constexpr unsigned threads = 512;

__global__ void __launch_bounds__(threads) run_copies(const __grid_constant__ CopyTable table) {
  table.run(int(blockIdx.y), std::size_t(blockIdx.x) * blockDim.x + threadIdx.x, std::size_t(gridDim.x) * blockDim.x);
}

}  // namespace

Status copy_all(std::span<const Copy> copies, cudaStream_t stream) {
  constexpr std::size_t all_blocks = 256;  // two for each multiprocessor of a large GPU
  while (!copies.empty()) {
    CopyTable table{};
    const std::size_t count = std::min(copies.size(), std::size_t{CopyTable::most});
    std::copy_n(copies.begin(), count, table.copies);
    const dim3 blocks(unsigned(std::max(all_blocks / count, std::size_t{1})), unsigned(count));
    run_copies<<<blocks, threads, 0, stream>>>(table);
    LANCET_TRY(launched("copies"));
    copies = copies.subspan(count);
  }
  return {};
}

}  // namespace lancet::backend::cuda
