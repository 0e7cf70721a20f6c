#include "copy.h"

#include <algorithm>

#include "check.h"
#include "copy_table.h"
#include "lancet/backend/cuda/kernel_list.h"

namespace lancet::backend::cuda {
namespace {

constexpr unsigned threads = 512;

__global__ void __launch_bounds__(threads) run_copies(const __grid_constant__ CopyTable table) {
  for (int number = int(blockIdx.y); number < table.count; number += int(gridDim.y))
    table.run(number, std::size_t(blockIdx.x) * blockDim.x + threadIdx.x, std::size_t(gridDim.x) * blockDim.x);
}

[[maybe_unused]] const bool listed = list_kernel(reinterpret_cast<const void*>(run_copies));

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
    run_copies<<<dim3(unsigned(blocks / at_once), unsigned(at_once)), threads, 0, stream>>>(table);
    LANCET_TRY(launched("copies"));
    copies = copies.subspan(std::size_t(table.count));
  }
  return {};
}

std::size_t copy_commands(std::size_t copies) { return (copies + CopyTable::most - 1) / CopyTable::most; }

}  // namespace lancet::backend::cuda
