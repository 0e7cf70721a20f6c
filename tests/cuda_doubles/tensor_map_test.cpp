// What the driver is told of a matrix that kernels copy in tiles.
#include "lancet/backend/cuda/tensor_map.h"

#include <catch2/catch.hpp>

#include "fake_runtime.h"

using namespace lancet;
using test::fake_runtime;

namespace {

const test::Encoded& encoded(const backend::cuda::TiledMatrix& matrix) {
  fake_runtime() = {};
  backend::cuda::TensorMap map{};
  const Status status = backend::cuda::encode(matrix, map);
  if (!status.ok()) FAIL(status.error().message);
  CHECK(map.words[15] == 7);
  return fake_runtime().encoded;
}

}  // namespace

TEST_CASE("a tensor map has the extents, strides and tiles that are asked for, the innermost first") {
  alignas(16) static std::byte memory[16];
  const test::Encoded& found = encoded({memory, DType::bf16, 1280, 768, 2304, 128, 64});
  CHECK(found.type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
  CHECK(found.rank == 2);
  CHECK(found.data == memory);
  CHECK((found.extents[0] == 768 && found.extents[1] == 1280));
  CHECK(found.stride == 4608);  // bytes
  CHECK((found.tile[0] == 64 && found.tile[1] == 128));
  CHECK((found.steps[0] == 1 && found.steps[1] == 1));
  CHECK(found.swizzle == CU_TENSOR_MAP_SWIZZLE_128B);
}

TEST_CASE("tiles are swizzled over the bytes of their rows") {
  CHECK(encoded({nullptr, DType::f32, 64, 64, 64, 8, 8}).swizzle == CU_TENSOR_MAP_SWIZZLE_32B);
  CHECK(encoded({nullptr, DType::bf16, 64, 64, 64, 8, 32}).swizzle == CU_TENSOR_MAP_SWIZZLE_64B);
  CHECK(encoded({nullptr, DType::bf16, 64, 64, 64, 8, 24}).swizzle == CU_TENSOR_MAP_SWIZZLE_NONE);
  CHECK(encoded({nullptr, DType::f32, 64, 64, 64, 8, 8}).type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32);
}

TEST_CASE("a matrix that the driver refuses is named") {
  fake_runtime() = {};
  fake_runtime().encode_error = CUDA_ERROR_INVALID_VALUE;
  backend::cuda::TensorMap map{};
  const Status status = backend::cuda::encode({nullptr, DType::bf16, 64, 60, 60, 8, 8}, map);
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().message == "a tensor map of bf16 [64,60] with a stride of 60 in tiles [8,8]: driver error 1");
}
