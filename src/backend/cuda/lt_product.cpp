// Row-major C[m,n] is column-major C^T[n,m], so the product that cuBLASLt computes is C^T = op(B)^T op(A)^T: its first
// operand is our B, its second our A, its rows are our columns. A bias of n elements is then its bias along rows
// (EPILOGUE_BIAS), and the sums of op(A) over k are its bias gradient of the second operand (EPILOGUE_BGRADB).
//
// The addresses of bias, row sums and GELU's argument are attributes of the operation's descriptor, so they are set
// before each call.
#include "lt_product.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <map>
#include <mutex>

#include "check.h"

namespace lancet::backend::cuda {
namespace {

constexpr int candidates = 16;

Status checked(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return internal_error(fmt::format("cuBLASLt, {}: {}", what, cublasLtGetStatusString(status)));
}

struct Library {
  cublasLtHandle_t handle = nullptr;
  std::string name;  // device and library version, for which a choice is valid
};

// One handle per device for the life of the process; cuBLASLt allows its use from several threads.
Result<Library> library() {
  static std::mutex mutex;
  static std::map<int, Library> handles;
  int device = 0;
  LANCET_TRY(check(cudaGetDevice(&device), "the thread's device"));
  const std::lock_guard lock(mutex);
  Library& it = handles[device];
  if (it.handle) return it;
  cudaDeviceProp properties;
  LANCET_TRY(check(cudaGetDeviceProperties(&properties, device), "the device's properties"));
  LANCET_TRY(checked(cublasLtCreate(&it.handle), "start"));
  it.name = fmt::format("{}, cuBLASLt {}", properties.name, cublasLtGetVersion());
  return it;
}

cublasLtEpilogue_t epilogue_of(const MatmulDesc& desc) {
  if (desc.activation == Activation::gelu)
    return desc.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  if (desc.activation == Activation::gelu_gradient) return CUBLASLT_EPILOGUE_DGELU;
  return desc.bias ? CUBLASLT_EPILOGUE_BIAS : desc.row_sums ? CUBLASLT_EPILOGUE_BGRADB : CUBLASLT_EPILOGUE_DEFAULT;
}

cudaDataType_t type_of(DType dtype) { return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

template <class T>
Status set_preference(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  return checked(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
                 "a preference");
}

}  // namespace

template <class T>
Status LtProduct::set(cublasLtMatmulDescAttributes_t attribute, T value) const {
  return checked(cublasLtMatmulDescSetAttribute(operation_.get(), attribute, &value, sizeof value), "an attribute");
}

Result<LtProduct::Layout> LtProduct::make_layout(DType dtype, std::int64_t rows, std::int64_t columns) {
  cublasLtMatrixLayout_t layout = nullptr;
  LANCET_TRY(
      checked(cublasLtMatrixLayoutCreate(&layout, type_of(dtype), std::uint64_t(rows), std::uint64_t(columns), rows),
              "a layout"));
  return Layout(layout);
}

Result<std::unique_ptr<LtProduct>> LtProduct::make(const MatmulDesc& desc, bool tf32) {
  std::unique_ptr<LtProduct> p(new LtProduct(desc));
  LANCET_ASSIGN(const Library found, library());
  p->library_ = found.handle;
  p->key_ = fmt::format("{}{} on {}", to_string(desc), tf32 ? " tf32" : "", found.name);
  LANCET_TRY(p->describe(tf32));
  LANCET_ASSIGN(p->b_, make_layout(desc.operands, desc.trans_b ? desc.k : desc.n, desc.trans_b ? desc.n : desc.k));
  LANCET_ASSIGN(p->a_, make_layout(desc.operands, desc.trans_a ? desc.m : desc.k, desc.trans_a ? desc.k : desc.m));
  LANCET_ASSIGN(p->c_, make_layout(desc.result, desc.n, desc.m));
  return p;
}

Status LtProduct::describe(bool tf32) {
  cublasLtMatmulDesc_t operation = nullptr;
  LANCET_TRY(checked(
      cublasLtMatmulDescCreate(&operation, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
      "a product"));
  operation_.reset(operation);
  LANCET_TRY(set(CUBLASLT_MATMUL_DESC_TRANSA, desc_.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N));
  LANCET_TRY(set(CUBLASLT_MATMUL_DESC_TRANSB, desc_.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N));
  LANCET_TRY(set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(desc_)));
  if (desc_.activation != Activation::none) {
    LANCET_TRY(set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, std::int32_t(type_of(desc_.result))));
    LANCET_TRY(set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, desc_.n));
  }
  if (desc_.bias || desc_.row_sums)
    LANCET_TRY(set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, std::int32_t(type_of(desc_.result))));
  return {};
}

Status LtProduct::set_addresses(const MatmulOperands& operands) const {
  if (desc_.activation != Activation::none)
    LANCET_TRY(set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.argument));
  const void* vector = desc_.bias ? operands.bias : operands.row_sums;
  if (!desc_.bias && !desc_.row_sums) return {};
  return set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector);
}

Result<std::vector<cublasLtMatmulAlgo_t>> LtProduct::propose(const MatmulOperands& operands,
                                                             std::uint32_t alignment) const {
  LANCET_TRY(set_addresses(operands));
  cublasLtMatmulPreference_t raw = nullptr;
  LANCET_TRY(checked(cublasLtMatmulPreferenceCreate(&raw), "a preference"));
  const Preference preference(raw);
  LANCET_TRY(set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, matmul_workspace_bytes));
  // Partial sums of a split k are kept in f32: in the type of a bf16 result they would be rounded one by one.
  const std::uint32_t schemes =
      desc_.result == DType::f32 ? CUBLASLT_REDUCTION_SCHEME_MASK : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  LANCET_TRY(set_preference(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes));
  for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    LANCET_TRY(set_preference(preference, attribute, alignment));
  std::vector<cublasLtMatmulHeuristicResult_t> results(candidates);
  int count = 0;
  LANCET_TRY(checked(cublasLtMatmulAlgoGetHeuristic(library_, operation_.get(), b_.get(), a_.get(), c_.get(), c_.get(),
                                                    preference.get(), candidates, results.data(), &count),
                     key_));
  std::vector<cublasLtMatmulAlgo_t> proposals;
  for (int i = 0; i < count; ++i)
    if (results[std::size_t(i)].state == CUBLAS_STATUS_SUCCESS) proposals.push_back(results[std::size_t(i)].algo);
  if (proposals.empty()) return internal_error(fmt::format("cuBLASLt has no algorithm for {}", key_));
  return proposals;
}

bool LtProduct::accepts(const cublasLtMatmulAlgo_t& algorithm, const MatmulOperands& operands) const {
  cublasLtMatmulHeuristicResult_t result{};
  return set_addresses(operands).ok() &&
         cublasLtMatmulAlgoCheck(library_, operation_.get(), b_.get(), a_.get(), c_.get(), c_.get(), &algorithm,
                                 &result) == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= matmul_workspace_bytes;
}

Status LtProduct::run(Stream& stream, const MatmulOperands& operands, std::byte* workspace) {
  LANCET_TRY(set_addresses(operands));
  const float one = 1.f, beta = desc_.accumulate ? 1.f : 0.f;
  return checked(cublasLtMatmul(library_, operation_.get(), &one, operands.b, b_.get(), operands.a, a_.get(), &beta,
                                operands.c, c_.get(), operands.c, c_.get(), &algorithm_, workspace,
                                matmul_workspace_bytes, static_cast<cudaStream_t>(stream.native())),
                 key_);
}

}  // namespace lancet::backend::cuda
