// Row-major C[m,n] is column-major C^T[n,m], so the product that cuBLASLt computes is C^T = op(B)^T op(A)^T: its first
// operand is our B, its second our A, its rows are our columns. A bias of n elements is then its bias along rows
// (EPILOGUE_BIAS), and the sums of op(A) over k are its bias gradient of the second operand (EPILOGUE_BGRADB).
//
// The algorithm of a product is chosen once, when it is made: the table's choice for its key (description, device,
// library version, alignment) if cuBLASLt still accepts it; otherwise, if measuring is on, the fastest of cuBLASLt's
// proposals, timed on scratch operands and entered in the table; otherwise the first proposal. The addresses of bias,
// row sums and GELU's argument are attributes of the operation's descriptor, so run() sets them before each call.
#include "lancet/backend/cuda/matmul.h"

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <vector>

#include "lancet/backend/cuda/matmul_choices.h"

namespace lancet::backend::cuda {
namespace {

constexpr int candidates = 16, rounds = 7;
// A candidate replaces an earlier one only if its time is below this share of the earlier time: 2% is more than times
// vary from run to run.
constexpr float clear_gain = 0.98f;

std::atomic<bool> allow_tf32 = false, measure_products = false;

Status check(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return internal_error(fmt::format("cuBLASLt, {}: {}", what, cublasLtGetStatusString(status)));
}
Status check(cudaError_t status, std::string_view what) {
  if (status == cudaSuccess) return {};
  return internal_error(fmt::format("CUDA, {}: {}", what, cudaGetErrorString(status)));
}

template <auto destroy>
struct Destroy {
  template <class T>
  void operator()(T* handle) const {
    destroy(handle);
  }
};
template <class Handle, auto destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<destroy>>;
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;
using DeviceMemory = Owned<void*, cudaFree>;
using TimingEvent = Owned<cudaEvent_t, cudaEventDestroy>;
using TimingStream = Owned<cudaStream_t, cudaStreamDestroy>;

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
  LANCET_TRY(check(cublasLtCreate(&it.handle), "start"));
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

Result<Layout> make_layout(DType dtype, std::int64_t rows, std::int64_t columns) {
  cublasLtMatrixLayout_t layout = nullptr;
  LANCET_TRY(
      check(cublasLtMatrixLayoutCreate(&layout, type_of(dtype), std::uint64_t(rows), std::uint64_t(columns), rows),
            "a layout"));
  return Layout(layout);
}

template <class T>
Status set(const Operation& operation, cublasLtMatmulDescAttributes_t attribute, T value) {
  return check(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof value), "an attribute");
}
template <class T>
Status set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  return check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value), "a preference");
}

// The largest power of two up to 256 that divides an address.
std::uint32_t alignment_of(const void* address) {
  return 1u << std::min(8, std::countr_zero(reinterpret_cast<std::uintptr_t>(address)));
}

std::size_t padded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }
std::size_t bytes_of(DType dtype, std::int64_t rows, std::int64_t columns) {
  return std::size_t(rows) * std::size_t(columns) * std::size_t(size_of(dtype));
}

class LtMatmul : public Matmul {
 public:
  static Result<std::unique_ptr<LtMatmul>> make(const MatmulDesc& desc) {
    std::unique_ptr<LtMatmul> p(new LtMatmul(desc));
    LANCET_ASSIGN(p->library_, library());
    const bool tf32 = desc.operands == DType::f32 && allow_tf32;
    cublasLtMatmulDesc_t operation = nullptr;
    LANCET_TRY(check(
        cublasLtMatmulDescCreate(&operation, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "a product"));
    p->operation_.reset(operation);
    LANCET_TRY(set(p->operation_, CUBLASLT_MATMUL_DESC_TRANSA, desc.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N));
    LANCET_TRY(set(p->operation_, CUBLASLT_MATMUL_DESC_TRANSB, desc.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N));
    LANCET_TRY(set(p->operation_, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(desc)));
    if (desc.activation != Activation::none) {
      LANCET_TRY(set(p->operation_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, std::int32_t(type_of(desc.result))));
      LANCET_TRY(set(p->operation_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, desc.n));
    }
    if (desc.bias || desc.row_sums)
      LANCET_TRY(set(p->operation_, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, std::int32_t(type_of(desc.result))));
    LANCET_ASSIGN(p->b_, make_layout(desc.operands, desc.trans_b ? desc.k : desc.n, desc.trans_b ? desc.n : desc.k));
    LANCET_ASSIGN(p->a_, make_layout(desc.operands, desc.trans_a ? desc.m : desc.k, desc.trans_a ? desc.k : desc.m));
    LANCET_ASSIGN(p->c_, make_layout(desc.result, desc.n, desc.m));
    p->key_ = fmt::format("{}{} on {}", to_string(desc), tf32 ? " tf32" : "", p->library_.name);
    return p;
  }

  Status choose(const MatmulOperands& operands) {
    LANCET_TRY(set_vector(operands));
    const std::uint32_t alignment =
        std::min({alignment_of(operands.a), alignment_of(operands.b), alignment_of(operands.c)});
    const std::string key = fmt::format("{}, aligned to {}", key_, alignment);
    if (const auto choice = find_matmul_choice(key)) {
      std::memcpy(algorithm_.data, choice->data(), sizeof algorithm_.data);
      cublasLtMatmulHeuristicResult_t result;
      if (cublasLtMatmulAlgoCheck(library_.handle, operation_.get(), b_.get(), a_.get(), c_.get(), c_.get(),
                                  &algorithm_, &result) == CUBLAS_STATUS_SUCCESS &&
          result.workspaceSize <= matmul_workspace_bytes)
        return {};
    }
    LANCET_ASSIGN(const auto proposed, propose(alignment));
    std::size_t best = 0;
    if (measure_products && proposed.size() > 1) {
      LANCET_ASSIGN(best, measure(proposed));
    }
    algorithm_ = proposed[best].algo;
    if (measure_products) {
      MatmulAlgorithm words;
      static_assert(sizeof words == sizeof algorithm_.data);
      std::memcpy(words.data(), algorithm_.data, sizeof words);
      keep_matmul_choice(key, words);
    }
    return {};
  }

  Status run(Stream& stream, const MatmulOperands& operands, std::byte* workspace) override {
    LANCET_TRY(set_vector(operands));
    return run(algorithm_, static_cast<cudaStream_t>(stream.native()), operands, workspace);
  }

 private:
  explicit LtMatmul(const MatmulDesc& desc) : desc_(desc) {}

  // Sets the addresses of the bias or the row sums, and of GELU's argument.
  Status set_vector(const MatmulOperands& operands) const {
    if (desc_.activation != Activation::none)
      LANCET_TRY(set(operation_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.argument));
    const void* vector = desc_.bias ? operands.bias : operands.row_sums;
    if (!desc_.bias && !desc_.row_sums) return {};
    return set(operation_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector);
  }

  Status run(const cublasLtMatmulAlgo_t& algorithm, cudaStream_t stream, const MatmulOperands& operands,
             void* workspace) const {
    const float one = 1.f, beta = desc_.accumulate ? 1.f : 0.f;
    return check(cublasLtMatmul(library_.handle, operation_.get(), &one, operands.b, b_.get(), operands.a, a_.get(),
                                &beta, operands.c, c_.get(), operands.c, c_.get(), &algorithm, workspace,
                                matmul_workspace_bytes, stream),
                 key_);
  }

  Result<std::vector<cublasLtMatmulHeuristicResult_t>> propose(std::uint32_t alignment) const {
    cublasLtMatmulPreference_t raw = nullptr;
    LANCET_TRY(check(cublasLtMatmulPreferenceCreate(&raw), "a preference"));
    const Preference preference(raw);
    LANCET_TRY(set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, matmul_workspace_bytes));
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      LANCET_TRY(set(preference, attribute, alignment));
    std::vector<cublasLtMatmulHeuristicResult_t> results(candidates);
    int count = 0;
    LANCET_TRY(check(cublasLtMatmulAlgoGetHeuristic(library_.handle, operation_.get(), b_.get(), a_.get(), c_.get(),
                                                    c_.get(), preference.get(), candidates, results.data(), &count),
                     key_));
    results.resize(std::size_t(count));
    std::erase_if(results, [](const auto& result) { return result.state != CUBLAS_STATUS_SUCCESS; });
    if (results.empty()) return internal_error(fmt::format("cuBLASLt has no algorithm for {}", key_));
    return results;
  }

  // Returns the index of the fastest proposal. It is timed on memory of its own, because the operands may be in use;
  // returns 0 if the device lacks that memory.
  Result<std::size_t> measure(const std::vector<cublasLtMatmulHeuristicResult_t>& proposed) const {
    const std::size_t a = padded(bytes_of(desc_.operands, desc_.m, desc_.k));
    const std::size_t b = padded(bytes_of(desc_.operands, desc_.n, desc_.k));
    const std::size_t c = padded(bytes_of(desc_.result, desc_.m, desc_.n));
    const std::size_t vector = padded(std::size_t(std::max(desc_.m, desc_.n)) * 4);
    const std::size_t argument = desc_.activation == Activation::none ? 0 : c;
    void* raw = nullptr;
    const std::size_t total = a + b + c + vector + argument + matmul_workspace_bytes;
    if (cudaMalloc(&raw, total) != cudaSuccess) {
      cudaGetLastError();  // so that the next call does not report it
      return std::size_t(0);
    }
    const DeviceMemory memory(raw);
    std::byte* at = static_cast<std::byte*>(raw);
    const MatmulOperands operands{.a = at,
                                  .b = at + a,
                                  .bias = at + a + b + c,
                                  .c = at + a + b,
                                  .row_sums = at + a + b + c,
                                  .argument = at + a + b + c + vector};
    LANCET_TRY(set_vector(operands));
    cudaStream_t raw_stream = nullptr;
    LANCET_TRY(check(cudaStreamCreateWithFlags(&raw_stream, cudaStreamNonBlocking), "a stream for timing"));
    const TimingStream stream(raw_stream);
    LANCET_TRY(check(cudaMemsetAsync(raw, 0, total, raw_stream), "clearing operands"));
    float best = std::numeric_limits<float>::infinity();
    std::size_t index = 0;
    for (std::size_t i = 0; i < proposed.size(); ++i) {
      LANCET_ASSIGN(const float time,
                    milliseconds(proposed[i].algo, raw_stream, operands, at + a + b + c + vector + argument));
      if (time < best * clear_gain) best = time, index = i;
    }
    return index;
  }

  // The shortest of several rounds, since disturbances only lengthen a run.
  Result<float> milliseconds(const cublasLtMatmulAlgo_t& algorithm, cudaStream_t stream, const MatmulOperands& operands,
                             void* workspace) const {
    cudaEvent_t raw_begin = nullptr, raw_end = nullptr;
    LANCET_TRY(check(cudaEventCreate(&raw_begin), "an event"));
    const TimingEvent begin(raw_begin);
    LANCET_TRY(check(cudaEventCreate(&raw_end), "an event"));
    const TimingEvent end(raw_end);
    float best = std::numeric_limits<float>::infinity();
    for (int round = 0; round < rounds; ++round) {
      LANCET_TRY(check(cudaEventRecord(raw_begin, stream), "an event"));
      if (!run(algorithm, stream, operands, workspace).ok()) return best;  // proposed but refused: infinite time
      LANCET_TRY(check(cudaEventRecord(raw_end, stream), "an event"));
      LANCET_TRY(check(cudaEventSynchronize(raw_end), "timing a product"));
      float time = 0;
      LANCET_TRY(check(cudaEventElapsedTime(&time, raw_begin, raw_end), "timing a product"));
      if (round > 0) best = std::min(best, time);  // the first round loads code
    }
    return best;
  }

  MatmulDesc desc_;
  Library library_;
  std::string key_;
  Operation operation_;
  Layout a_, b_, c_;
  cublasLtMatmulAlgo_t algorithm_{};
};

}  // namespace

std::string to_string(const MatmulDesc& desc) {
  constexpr const char* activations[] = {"", ", gelu", ", gelu gradient"};
  return fmt::format("{}[{},{}] = {}{} {}{}{}{}{}", name(desc.result), desc.m, desc.n, name(desc.operands),
                     fmt::format("[{},{}]{}", desc.m, desc.k, desc.trans_a ? "t" : ""),
                     fmt::format("[{},{}]{}", desc.k, desc.n, desc.trans_b ? "t" : ""), desc.bias ? " + bias" : "",
                     desc.accumulate ? " + c" : "", desc.row_sums ? " and row sums" : "",
                     activations[std::size_t(desc.activation)]);
}

Result<std::unique_ptr<Matmul>> make_matmul(const MatmulDesc& desc, const MatmulOperands& operands) {
  if (desc.row_sums && desc.bias) return internal_error("a product has a bias or row sums, not both");
  if (desc.activation != Activation::none) {
    if (desc.row_sums || desc.accumulate || (desc.activation == Activation::gelu_gradient && desc.bias))
      return internal_error("a product with GELU has a bias at most");
    // cuBLASLt's requirements on the matrix of arguments.
    if (desc.n % 8 || alignment_of(operands.argument) < 16)
      return internal_error(
          fmt::format("expected rows of a multiple of 8 elements, aligned to 16 bytes, for {}", to_string(desc)));
  }
  LANCET_ASSIGN(std::unique_ptr<LtMatmul> matmul, LtMatmul::make(desc));
  LANCET_TRY(matmul->choose(operands));
  return std::unique_ptr<Matmul>(std::move(matmul));
}

void set_matmul_settings(const MatmulSettings& settings) {
  allow_tf32 = settings.tf32;
  measure_products = settings.measure;
}

}  // namespace lancet::backend::cuda
