#include "matmul_scratch.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <limits>

#include "check.h"
#include "normals.h"

namespace lancet::backend::cuda {
namespace {

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

}  // namespace

Result<std::optional<MatmulScratch>> MatmulScratch::make(const MatmulDesc& desc, std::size_t own_workspace,
                                                         Stream& stream) {
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

// The shortest of several rounds, since disturbances only lengthen a run.
Result<float> MatmulScratch::milliseconds(const Bind& bind) const {
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

}  // namespace lancet::backend::cuda
