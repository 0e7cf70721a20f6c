#include "lancet/backend/cuda/tensor_map.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <fmt/format.h>

#include "check.h"

namespace lancet::backend::cuda {
namespace {

CUtensorMapSwizzle swizzle_over(std::int64_t bytes) {
  switch (bytes) {
    case 32:
      return CU_TENSOR_MAP_SWIZZLE_32B;
    case 64:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    case 128:
      return CU_TENSOR_MAP_SWIZZLE_128B;
    default:
      return CU_TENSOR_MAP_SWIZZLE_NONE;
  }
}

}  // namespace

Status encode(const TiledMatrix& matrix, TensorMap& map) {
  PFN_cuTensorMapEncodeTiled_v12000 encode_tiled = nullptr;
  if (!find_call("cuTensorMapEncodeTiled", 12000, encode_tiled))
    return internal_error("expected a driver with cuTensorMapEncodeTiled, found one without");
  const auto type = matrix.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  // The innermost dimension is first, and has no stride.
  const cuuint64_t extents[] = {cuuint64_t(matrix.columns), cuuint64_t(matrix.rows)};
  const cuuint64_t strides[] = {cuuint64_t(matrix.stride * size_of(matrix.dtype))};
  const cuuint32_t tile[] = {cuuint32_t(matrix.tile_columns), cuuint32_t(matrix.tile_rows)};
  const cuuint32_t every_element[] = {1, 1};
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) >= alignof(CUtensorMap));
  const CUresult error = encode_tiled(
      reinterpret_cast<CUtensorMap*>(map.words), type, 2, const_cast<void*>(matrix.data), extents, strides, tile,
      every_element, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_over(matrix.tile_columns * size_of(matrix.dtype)),
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (error != CUDA_SUCCESS)
    return internal_error(fmt::format(
        "a tensor map of {} [{},{}] with a stride of {} in tiles [{},{}]: driver error {}", name(matrix.dtype),
        matrix.rows, matrix.columns, matrix.stride, matrix.tile_rows, matrix.tile_columns, static_cast<int>(error)));
  return {};
}

}  // namespace lancet::backend::cuda
