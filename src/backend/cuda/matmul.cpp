// The choice of a product's algorithm, once, when the product is made: the table's choice for its key (description,
// device, library version, alignment) if cuBLASLt still accepts it; otherwise, if measuring is on, the fastest of
// cuBLASLt's proposals, timed on scratch operands and entered in the table; otherwise the first proposal.
//
// Row-major C[m,n] is column-major C^T[n,m], so the product that cuBLASLt computes is C^T = op(B)^T op(A)^T: its first
// operand is our B, its second our A, its rows are our columns. A bias of n elements is then its bias along rows
// (EPILOGUE_BIAS), and the sums of op(A) over k are its bias gradient of the second operand (EPILOGUE_BGRADB).
//
// The addresses of bias, row sums and GELU's argument are attributes of the operation's descriptor, so they are set
// before each call.
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
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "kernels.h"
#include "lancet/backend/cuda/matmul_choices.h"

namespace lancet::backend::cuda {

std::string to_string(const MatmulDesc& desc) {
  constexpr const char* activations[] = {"", ", gelu", ", gelu gradient"};
  return fmt::format("{}[{},{}] = {}{} {}{}{}{}{}", name(desc.result), desc.m, desc.n, name(desc.operands),
                     fmt::format("[{},{}]{}", desc.m, desc.k, desc.trans_a ? "t" : ""),
                     fmt::format("[{},{}]{}", desc.k, desc.n, desc.trans_b ? "t" : ""), desc.bias ? " + bias" : "",
                     desc.accumulate ? " + c" : "", desc.row_sums ? " and row sums" : "",
                     activations[std::size_t(desc.activation)]);
}

namespace {

using Algorithm = cublasLtMatmulAlgo_t;

// A handle of a C library, destroyed by `destroy`.
template <auto destroy>
struct Destroy {
  template <class T>
  void operator()(T* handle) const {
    destroy(handle);
  }
};
template <class Handle, auto destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<destroy>>;

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

// One product as cuBLASLt describes it: its operation, its layouts and the algorithm that runs it.
class LtProduct final : public Matmul {
 public:
  static Result<std::unique_ptr<LtProduct>> make(const MatmulDesc& desc, bool tf32) {
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

  const MatmulDesc& desc() const { return desc_; }
  // The description with what else decides whether an algorithm is valid: the device and the library's version.
  const std::string& key() const { return key_; }

  // cuBLASLt's proposals for operands aligned to `alignment` bytes, the one it considers fastest first; never empty.
  Result<std::vector<Algorithm>> propose(const MatmulOperands& operands, std::uint32_t alignment) const {
    LANCET_TRY(set_addresses(operands));
    cublasLtMatmulPreference_t raw = nullptr;
    LANCET_TRY(checked(cublasLtMatmulPreferenceCreate(&raw), "a preference"));
    const Preference preference(raw);
    LANCET_TRY(set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, matmul_workspace_bytes));
    // Partial sums of a split k are kept in f32: in the type of a bf16 result they would be rounded one by one.
    const std::uint32_t schemes =
        desc_.result == DType::f32 ? CUBLASLT_REDUCTION_SCHEME_MASK : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    LANCET_TRY(set_preference(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes));
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      LANCET_TRY(set_preference(preference, attribute, alignment));
    std::vector<cublasLtMatmulHeuristicResult_t> results(candidates);
    int count = 0;
    LANCET_TRY(checked(cublasLtMatmulAlgoGetHeuristic(library_, operation_.get(), b_.get(), a_.get(), c_.get(),
                                                      c_.get(), preference.get(), candidates, results.data(), &count),
                       key_));
    std::vector<Algorithm> proposals;
    for (int i = 0; i < count; ++i)
      if (results[std::size_t(i)].state == CUBLAS_STATUS_SUCCESS) proposals.push_back(results[std::size_t(i)].algo);
    if (proposals.empty()) return internal_error(fmt::format("cuBLASLt has no algorithm for {}", key_));
    return proposals;
  }

  // True if cuBLASLt runs the algorithm on these extents, within matmul_workspace_bytes.
  bool accepts(const Algorithm& algorithm, const MatmulOperands& operands) const {
    cublasLtMatmulHeuristicResult_t result{};
    return set_addresses(operands).ok() &&
           cublasLtMatmulAlgoCheck(library_, operation_.get(), b_.get(), a_.get(), c_.get(), c_.get(), &algorithm,
                                   &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= matmul_workspace_bytes;
  }

  // The algorithm of run(); it must be set before.
  void use(const Algorithm& algorithm) { algorithm_ = algorithm; }
  Status run(Stream& stream, const MatmulOperands& operands, std::byte* workspace) override {
    LANCET_TRY(set_addresses(operands));
    const float one = 1.f, beta = desc_.accumulate ? 1.f : 0.f;
    return checked(cublasLtMatmul(library_, operation_.get(), &one, operands.b, b_.get(), operands.a, a_.get(), &beta,
                                  operands.c, c_.get(), operands.c, c_.get(), &algorithm_, workspace,
                                  matmul_workspace_bytes, static_cast<cudaStream_t>(stream.native())),
                   key_);
  }

 private:
  using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
  using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

  explicit LtProduct(const MatmulDesc& desc) : desc_(desc) {}
  static Result<Layout> make_layout(DType dtype, std::int64_t rows, std::int64_t columns) {
    cublasLtMatrixLayout_t layout = nullptr;
    LANCET_TRY(
        checked(cublasLtMatrixLayoutCreate(&layout, type_of(dtype), std::uint64_t(rows), std::uint64_t(columns), rows),
                "a layout"));
    return Layout(layout);
  }

  template <class T>
  Status set(cublasLtMatmulDescAttributes_t attribute, T value) const {
    return checked(cublasLtMatmulDescSetAttribute(operation_.get(), attribute, &value, sizeof value), "an attribute");
  }

  Status describe(bool tf32) {
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

  Status set_addresses(const MatmulOperands& operands) const {
    if (desc_.activation != Activation::none)
      LANCET_TRY(set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.argument));
    const void* vector = desc_.bias ? operands.bias : operands.row_sums;
    if (!desc_.bias && !desc_.row_sums) return {};
    return set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector);
  }

  MatmulDesc desc_;
  cublasLtHandle_t library_ = nullptr;
  std::string key_;
  Operation operation_;
  Layout a_, b_, c_;
  Algorithm algorithm_{};
};

constexpr int rounds = 7;
// The stream is busy for this time before a round, so that the host has queued all of it when it begins.
constexpr double ahead_ms = 0.1;

using TimingEvent = Owned<cudaEvent_t, cudaEventDestroy>;
Result<TimingEvent> make_timing_event() {
  cudaEvent_t event = nullptr;
  LANCET_TRY(check(cudaEventCreate(&event), "cudaEventCreate"));
  return TimingEvent(event);
}

// Elements of one set of operands, and where they are in it.
struct Tensors {
  explicit Tensors(const MatmulDesc& desc)
      : operands(desc.operands),
        result(desc.result),
        a(std::size_t(desc.m * desc.k)),
        b(std::size_t(desc.n * desc.k)),
        c(std::size_t(desc.m * desc.n)),
        vector(std::size_t(std::max(desc.m, desc.n))),
        argument(desc.activation == Activation::none ? 0 : c) {}

  static std::size_t bytes(DType dtype, std::size_t count) {
    return (count * std::size_t(size_of(dtype)) + 255) / 256 * 256;
  }
  std::size_t bytes() const {
    return bytes(operands, a) + bytes(operands, b) + bytes(result, c) + bytes(result, vector) + bytes(result, argument);
  }

  // Fills a set of operands that starts at `at`.
  Result<MatmulOperands> fill(std::byte* at, std::uint32_t seed, cudaStream_t stream) const {
    Status status;
    const auto take = [&](DType dtype, std::size_t count) {
      std::byte* const start = at;
      at += bytes(dtype, count);
      if (status.ok() && count > 0) status = fill_normals(start, dtype, count, ++seed, stream);
      return start;
    };
    MatmulOperands set;
    set.a = take(operands, a);
    set.b = take(operands, b);
    set.c = take(result, c);
    set.bias = set.row_sums = take(result, vector);
    set.argument = take(result, argument);
    LANCET_TRY(status);
    return set;
  }

  DType operands, result;
  std::size_t a, b, c, vector, argument;
};

// Enough sets that one has left the L2 cache when its turn comes again.
Result<std::size_t> sets_beyond_cache(std::size_t bytes) {
  int device = 0, cache = 0;
  LANCET_TRY(check(cudaGetDevice(&device), "cudaGetDevice"));
  LANCET_TRY(check(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device), "cudaDeviceGetAttribute"));
  return std::clamp<std::size_t>(2 * std::size_t(cache) / bytes + 1, 1, rounds);
}

// Operands of a product in memory of their own, for timing, since the real operands may be in use. They hold normal
// random numbers, because a GPU runs faster on zeros. Each round takes another set of operands, so that they come from
// memory and not from the L2 cache, as mostly in a step.
class MatmulScratch {
 public:
  // own_workspace: bytes that kernels beside the product need after its workspace. Empty if the device lacks the
  // memory.
  static Result<std::optional<MatmulScratch>> make(const MatmulDesc& desc, std::size_t own_workspace, Stream& stream) {
    const Tensors tensors(desc);
    LANCET_ASSIGN(const std::size_t sets, sets_beyond_cache(tensors.bytes()));
    void* raw = nullptr;
    if (cudaMalloc(&raw, sets * tensors.bytes() + matmul_workspace_bytes + own_workspace) != cudaSuccess) {
      cudaGetLastError();  // so that the next call does not report it
      return std::optional<MatmulScratch>();
    }
    MatmulScratch scratch(stream, raw);
    auto* at = static_cast<std::byte*>(raw);
    for (std::size_t i = 0; i < sets; ++i, at += tensors.bytes()) {
      LANCET_ASSIGN(const MatmulOperands set,
                    tensors.fill(at, std::uint32_t(8 * i), static_cast<cudaStream_t>(stream.native())));
      scratch.sets_.push_back(set);
    }
    scratch.workspace_ = at;
    return std::optional(std::move(scratch));
  }

  using Bind = std::function<std::function<Status()>(const MatmulOperands& operands, std::byte* workspace)>;
  // The time of the bound work on the stream, which nothing else uses meanwhile, without the host's time to bind and
  // queue it: the shortest of several rounds, since disturbances only lengthen a run. Infinite if the work fails.
  Result<float> milliseconds(const Bind& bind) const {
    LANCET_ASSIGN(const TimingEvent begin, make_timing_event());
    LANCET_ASSIGN(const TimingEvent end, make_timing_event());
    const auto stream = static_cast<cudaStream_t>(stream_->native());
    float best = std::numeric_limits<float>::infinity();
    for (std::size_t round = 0; round < rounds; ++round) {
      const auto work = bind(sets_[round % sets_.size()], workspace_);
      LANCET_TRY(stream_->delay(ahead_ms));
      LANCET_TRY(check(cudaEventRecord(begin.get(), stream), "cudaEventRecord"));
      if (!work().ok()) return std::numeric_limits<float>::infinity();
      LANCET_TRY(check(cudaEventRecord(end.get(), stream), "cudaEventRecord"));
      LANCET_TRY(check(cudaEventSynchronize(end.get()), "timing a product"));
      float time = 0;
      LANCET_TRY(check(cudaEventElapsedTime(&time, begin.get(), end.get()), "cudaEventElapsedTime"));
      if (round > 0) best = std::min(best, time);  // the first round loads code
    }
    return best;
  }

 private:
  using Memory = Owned<void*, cudaFree>;
  MatmulScratch(Stream& stream, void* memory) : stream_(&stream), memory_(memory) {}

  Stream* stream_;
  Memory memory_;
  std::vector<MatmulOperands> sets_;
  std::byte* workspace_ = nullptr;
};

// A candidate replaces an earlier one only if its time is below this share of the earlier time: 2% is more than times
// vary from run to run.
constexpr float clear_gain = 0.98f;

std::atomic<bool> allow_tf32 = false, measure_products = false;

Result<std::unique_ptr<LtProduct>> make_product(const MatmulDesc& desc) {
  return LtProduct::make(desc, desc.operands == DType::f32 && allow_tf32);
}

// The largest power of two up to 16 that divides an address; kernels distinguish no larger ones, since they load 16
// bytes at once.
std::uint32_t alignment_of(const void* address) {
  return 1u << std::min(4, std::countr_zero(reinterpret_cast<std::uintptr_t>(address)));
}
std::uint32_t alignment_of(const MatmulOperands& operands) {
  return std::min({alignment_of(operands.a), alignment_of(operands.b), alignment_of(operands.c)});
}

Algorithm from_words(const MatmulAlgorithm& words) {
  Algorithm algorithm{};
  static_assert(sizeof words == sizeof algorithm.data);
  std::memcpy(algorithm.data, words.data(), sizeof words);
  return algorithm;
}
MatmulAlgorithm to_words(const Algorithm& algorithm) {
  MatmulAlgorithm words;
  std::memcpy(words.data(), algorithm.data, sizeof words);
  return words;
}

MatmulDesc whole_of(MatmulDesc desc) {
  desc.m *= std::exchange(desc.parts, 1);
  return desc;
}

Result<Algorithm> choose(LtProduct& product, const MatmulOperands& operands, Stream& stream);

// Chooses the algorithm of a product for operands of the alignment of these. All its extents are those of the product.
class Choice {
 public:
  Choice(LtProduct& product, const MatmulOperands& operands, Stream& stream, const Unfused* unfused)
      : product_(product),
        operands_(operands),
        stream_(stream),
        unfused_(unfused),
        key_(fmt::format("{}, aligned to {}", product.key(), alignment_of(operands))) {}

  // Empty: the other way is faster.
  Result<std::optional<Algorithm>> run() {
    if (const auto kept = find_matmul_choice(key_)) {
      if (unfused_ && *kept == unfused_is_faster) return std::optional<Algorithm>();
      if (const Algorithm algorithm = from_words(*kept); product_.accepts(algorithm, operands_))
        return std::optional(algorithm);
    }
    LANCET_ASSIGN(const auto proposals, product_.propose(operands_, alignment_of(operands_)));
    if (!measure_products) return std::optional(proposals[0]);
    LANCET_ASSIGN(const auto fastest, measure(proposals));
    keep_matmul_choice(key_, fastest ? to_words(*fastest) : unfused_is_faster);
    return fastest;
  }

 private:
  // The first proposal if the device lacks the memory for scratch operands.
  Result<std::optional<Algorithm>> measure(const std::vector<Algorithm>& proposals) {
    if (proposals.size() == 1 && !unfused_) return std::optional(proposals[0]);
    std::shared_ptr<LtProduct> without_epilogue;
    if (unfused_) {
      MatmulDesc desc = unfused_->desc;
      desc.m = product_.desc().m, desc.parts = 1;
      LANCET_ASSIGN(without_epilogue, make_product(desc));
      LANCET_ASSIGN(const Algorithm algorithm, choose(*without_epilogue, operands_, stream_));
      without_epilogue->use(algorithm);
    }
    LANCET_ASSIGN(const auto scratch,
                  MatmulScratch::make(product_.desc(), unfused_ ? unfused_->own_workspace : 0, stream_));
    if (!scratch) return std::optional(proposals[0]);
    const std::shared_ptr<Matmul> with_epilogue(std::shared_ptr<void>(), &product_);  // not owned
    BindMatmul bind = [](const MatmulCall& call) { return call; };
    if (unfused_ && unfused_->bind_fused) bind = unfused_->bind_fused;
    std::optional<Algorithm> fastest;
    float best = std::numeric_limits<float>::infinity();
    for (const Algorithm& algorithm : proposals) {
      product_.use(algorithm);
      LANCET_ASSIGN(const float time, milliseconds(*scratch, with_epilogue, bind));
      if (!fastest || time < best * clear_gain) fastest = algorithm, best = time;
    }
    if (!unfused_) return fastest;
    LANCET_ASSIGN(const float time, milliseconds(*scratch, without_epilogue, unfused_->bind));
    return time < best * clear_gain ? std::nullopt : fastest;
  }

  Result<float> milliseconds(const MatmulScratch& scratch, const std::shared_ptr<Matmul>& product,
                             const BindMatmul& bind) const {
    return scratch.milliseconds([&](const MatmulOperands& operands, std::byte* workspace) {
      return bind({product, product_.desc(), operands, &stream_, workspace});
    });
  }

  LtProduct& product_;
  const MatmulOperands& operands_;
  Stream& stream_;
  const Unfused* unfused_;
  std::string key_;
};

Result<Algorithm> choose(LtProduct& product, const MatmulOperands& operands, Stream& stream) {
  LANCET_ASSIGN(const auto algorithm, Choice(product, operands, stream, nullptr).run());
  return *algorithm;
}

Status check_epilogue(const MatmulDesc& desc, const MatmulOperands& operands) {
  if (desc.row_sums && desc.bias) return internal_error("a product has a bias or row sums, not both");
  if (desc.activation == Activation::none) return {};
  if (desc.row_sums || desc.accumulate || (desc.activation == Activation::gelu_gradient && desc.bias))
    return internal_error("a product with GELU has a bias at most");
  // cuBLASLt's requirements on the matrix of arguments.
  if (desc.n % 8 || alignment_of(operands.argument) < 16)
    return internal_error(
        fmt::format("expected rows of a multiple of 8 elements, aligned to 16 bytes, for {}", to_string(desc)));
  return {};
}

// Null: the other way is faster.
Result<std::unique_ptr<Matmul>> make(const MatmulDesc& desc, const MatmulOperands& operands, Stream& stream,
                                     const Unfused* unfused) {
  LANCET_TRY(check_epilogue(desc, operands));
  LANCET_ASSIGN(std::unique_ptr<LtProduct> product, make_product(desc));
  LANCET_ASSIGN(const std::unique_ptr<LtProduct> whole, make_product(whole_of(desc)));
  LANCET_ASSIGN(auto algorithm, Choice(*whole, operands, stream, unfused).run());
  if (algorithm && !product->accepts(*algorithm, operands)) {
    LANCET_ASSIGN(algorithm, Choice(*product, operands, stream, unfused).run());
  }
  if (!algorithm) return std::unique_ptr<Matmul>();
  product->use(*algorithm);
  return std::unique_ptr<Matmul>(std::move(product));
}

}  // namespace

Result<std::unique_ptr<Matmul>> make_matmul(const MatmulDesc& desc, const MatmulOperands& operands, Stream& stream) {
  return make(desc, operands, stream, nullptr);
}

std::unique_ptr<Matmul> make_fused_matmul(const MatmulDesc& desc, const MatmulOperands& operands, Stream& stream,
                                          const Unfused& unfused) {
  auto made = make(desc, operands, stream, &unfused);
  return made.ok() ? std::move(*made) : nullptr;
}

void set_matmul_settings(const MatmulSettings& settings) {
  allow_tf32 = settings.tf32;
  measure_products = settings.measure;
}

}  // namespace lancet::backend::cuda
