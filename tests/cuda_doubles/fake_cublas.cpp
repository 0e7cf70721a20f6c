#include "fake_cublas.h"

#include <cublasLt.h>

#include <cstring>

#include "backend/cuda/kernels.h"
#include "fake_runtime.h"
#include "lancet/base/random.h"

namespace lancet::test {
FakeCublas& fake_cublas() {
  static FakeCublas library;
  return library;
}
}  // namespace lancet::test

namespace {

using lancet::test::fake_cublas;
using lancet::test::FakeProduct;

struct Layout {
  std::int64_t rows, columns;
};
struct Operation {
  std::int32_t transposed_a = 0, epilogue = CUBLASLT_EPILOGUE_DEFAULT;  // column-major
};

const Layout& layout(cublasLtMatrixLayout_t handle) { return *reinterpret_cast<const Layout*>(handle); }

// Column-major C^T[n,m] of a row-major product: its second operand is the first one row-major.
FakeProduct product_of(cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t first, cublasLtMatrixLayout_t c) {
  const auto& described = *reinterpret_cast<const Operation*>(operation);
  return {layout(c).columns, layout(c).rows, described.transposed_a ? layout(first).rows : layout(first).columns,
          described.epilogue != CUBLASLT_EPILOGUE_DEFAULT && described.epilogue != CUBLASLT_EPILOGUE_BIAS};
}

template <class Handle, class T>
cublasStatus_t make(Handle* handle, T value) {
  *handle = reinterpret_cast<Handle>(new T(value));
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

extern "C" {
const char* cublasLtGetStatusString(cublasStatus_t) { return "as the library says it"; }
std::size_t cublasLtGetVersion() { return 130100; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return make(handle, 0); }
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t, cudaDataType_t) {
  return make(operation, Operation{});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete reinterpret_cast<Operation*>(operation);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  auto& described = *reinterpret_cast<Operation*>(operation);
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSA) std::memcpy(&described.transposed_a, value, bytes);
  if (attribute == CUBLASLT_MATMUL_DESC_EPILOGUE) std::memcpy(&described.epilogue, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* handle, cudaDataType, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t) {
  return make(handle, Layout{std::int64_t(rows), std::int64_t(columns)});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t handle) {
  delete reinterpret_cast<Layout*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) { return make(preference, 0); }
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<int*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, std::size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t first, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int most,
                                              cublasLtMatmulHeuristicResult_t results[], int* count) {
  *count = 0;
  for (const int algorithm : fake_cublas().proposals(product_of(operation, first, c))) {
    if (*count == most) break;
    results[*count] = {};
    results[*count].state = CUBLAS_STATUS_SUCCESS;
    results[(*count)++].algo.data[0] = std::uint64_t(algorithm);
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t first,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulHeuristicResult_t*) {
  return fake_cublas().accepts(product_of(operation, first, c), int(algorithm->data[0])) ? CUBLAS_STATUS_SUCCESS
                                                                                         : CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void*, const void*,
                              cublasLtMatrixLayout_t first, const void* b, cublasLtMatrixLayout_t, const void*,
                              const void*, cublasLtMatrixLayout_t c, void*, cublasLtMatrixLayout_t,
                              const cublasLtMatmulAlgo_t* algorithm, void*, std::size_t, cudaStream_t) {
  const FakeProduct product = product_of(operation, first, c);
  const int number = int(algorithm->data[0]);
  fake_cublas().calls.push_back({product, number, b});
  lancet::test::fake_runtime().clock_ms += fake_cublas().milliseconds(product, number);
  return CUBLAS_STATUS_SUCCESS;
}
}  // extern "C"

namespace lancet::backend::cuda {
Status fill_normals(void* values, DType dtype, std::size_t count, std::uint32_t seed, cudaStream_t) {
  const Philox random(seed, 0);
  for (std::size_t i = 0; i < count; ++i)
    if (dtype == DType::bf16)
      static_cast<bf16*>(values)[i] = from_f32<bf16>(random.normal(i));
    else
      static_cast<float*>(values)[i] = random.normal(i);
  return {};
}
}  // namespace lancet::backend::cuda
