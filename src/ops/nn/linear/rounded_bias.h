// Roundings of biases for products in bf16. Biases are f32 parameters, but cuBLASLt's epilogues require a bias of the
// result's type, so a product reads a bf16 copy of its bias. The first product of a plan rounds the biases of all
// products in one launch. That is valid for the whole step, because only the optimizer changes biases, between their
// last use in a step and their first use in the next. Memory: 2 bytes per element.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "column_sums.h"
#include "lancet/ops/kernel.h"

namespace lancet::ops::device {

// out[i] = x[i] for several vectors, with `chunks` blocks each, enough for the longest.
struct RoundVectors {
  static constexpr int threads = RoundVector::threads, most = 96;  // a launch takes 4 KB of parameters
  std::int64_t chunks;
  RoundVector vector[most];

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const RoundVector& v = vector[block.index() / chunks];
    const std::int64_t i = block.index() % chunks * threads + block.thread();
    if (i < v.n) v.out[i] = from_f32<bf16>(v.x[i]);
  }
};

class RoundedBiases {
 public:
  explicit RoundedBiases(backend::Device& device) : device_(device) {}
  RoundedBiases(const RoundedBiases&) = delete;
  RoundedBiases& operator=(const RoundedBiases&) = delete;
  ~RoundedBiases() {
    for (const RoundVector& vector : vectors_) device_.free(reinterpret_cast<std::byte*>(vector.out));
  }

  // Returns the memory of the bias's rounding; null if the device has no memory left.
  bf16* add(const float* bias, std::int64_t n) {
    for (const RoundVector& vector : vectors_)
      if (vector.x == bias && vector.n == n) return vector.out;
    auto memory = device_.allocate(std::size_t(n) * sizeof(bf16));
    if (!memory.ok()) return nullptr;
    vectors_.push_back({bias, reinterpret_cast<bf16*>(*memory), n});
    return vectors_.back().out;
  }

  Status round(backend::Stream& stream) const {
    for (std::size_t first = 0; first < vectors_.size(); first += RoundVectors::most) {
      RoundVectors some{};
      const std::size_t count = std::min(vectors_.size() - first, std::size_t(RoundVectors::most));
      std::copy_n(vectors_.begin() + std::ptrdiff_t(first), count, some.vector);
      for (std::size_t i = 0; i < count; ++i)
        some.chunks = std::max(some.chunks, divide_up(some.vector[i].n, RoundVectors::threads));
      LANCET_TRY(launch(stream, std::int64_t(count) * some.chunks, some));
    }
    return {};
  }

 private:
  backend::Device& device_;
  std::vector<RoundVector> vectors_;
};

// The launches that a product queues before itself for its bias.
struct BiasRounding {
  std::shared_ptr<RoundedBiases> all;
  bool is_first = false;  // the plan's first product with a bias, which rounds all biases
  RoundVector own{};      // if n is not 0: the product's own bias, rounded for it alone

  Status operator()(backend::Stream& stream) const {
    if (is_first) LANCET_TRY(all->round(stream));
    if (own.n) LANCET_TRY(launch(stream, divide_up(own.n, RoundVector::threads), own));
    return {};
  }
};

// The rounding of the bias that is operand `at`; sets `rounded` to the address of the result. `scratch` has space for
// the result, and is used outside of a plan or if the device has no memory left.
inline BiasRounding round_bias(const KernelArgs& args, std::size_t at, bf16* scratch, const void*& rounded) {
  constexpr std::int32_t all_biases = -1;  // not a tensor's number
  const TensorView& bias = args.operands[at];
  BiasRounding rounding;
  if (args.notes && args.device) {
    std::shared_ptr<void>& note = (*args.notes)[all_biases];
    rounding.is_first = note == nullptr;
    if (!note) note = std::make_shared<RoundedBiases>(*args.device);
    rounding.all = std::static_pointer_cast<RoundedBiases>(note);
    rounded = rounding.all->add(bias.as<float>(), bias.elements());
    if (rounded) return rounding;
  }
  rounding.own = {bias.as<float>(), scratch, bias.elements()};
  rounded = scratch;
  return rounding;
}

}  // namespace lancet::ops::device
