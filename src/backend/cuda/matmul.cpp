// The choice of a product's algorithm, once, when the product is made: the table's choice for its key (description,
// device, library version, alignment) if cuBLASLt still accepts it; otherwise, if measuring is on, the fastest of
// cuBLASLt's proposals, timed on scratch operands and entered in the table; otherwise the first proposal.
#include "lancet/backend/cuda/matmul.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "lancet/backend/cuda/matmul_choices.h"
#include "lt_product.h"
#include "matmul_scratch.h"

namespace lancet::backend::cuda {
namespace {

using Algorithm = cublasLtMatmulAlgo_t;

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

Status check(const MatmulDesc& desc, const MatmulOperands& operands) {
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
  LANCET_TRY(check(desc, operands));
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
