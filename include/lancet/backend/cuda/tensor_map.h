// Tensor maps: what the bulk tensor copies of sm_90 (PTX ISA: cp.async.bulk.tensor) read of a matrix in device memory.
// A kernel has the map as a member, so that it is among the arguments of the launch, as the instruction wants it.
#pragma once
#include <cstdint>

#include "lancet/base/dtype.h"
#include "lancet/base/result.h"

namespace lancet::backend::cuda {

// A row-major matrix [rows, columns] of bf16 or f32 that is copied in tiles. Elements of a tile beyond the matrix are
// read as zeros, and not written.
struct TiledMatrix {
  const void* data;  // aligned to 16 bytes
  DType dtype;
  std::int64_t rows, columns;
  std::int64_t stride;                   // elements from row to row; whole multiples of 16 bytes
  std::int32_t tile_rows, tile_columns;  // at most 256 each; a tile's row is whole multiples of 16 bytes
};

struct alignas(128) TensorMap {
  std::uint64_t words[16];
};

// A tile whose rows are 32, 64 or 128 bytes is swizzled over a row's bytes in shared memory; another tile is not.
// Error: the driver has no tensor maps, or refuses the matrix.
Status encode(const TiledMatrix& matrix, TensorMap& map);

}  // namespace lancet::backend::cuda
