// Random operands of either type, and reference products in double.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "lancet/backend/cpu/matmul.h"
#include "lancet/base/random.h"

namespace lancet::backend::cpu {

// Elements of f32 or bf16 behind one interface; values are representable in the type.
class Elements {
 public:
  Elements(std::int64_t count, DType dtype)
      : dtype_(dtype),
        f32_(dtype == DType::f32 ? std::size_t(count) : 0),
        bf16_(dtype == DType::bf16 ? std::size_t(count) : 0) {}
  // Normal numbers from (seed, index).
  static Elements random(std::int64_t count, DType dtype, std::uint64_t seed) {
    Elements e(count, dtype);
    const Philox draw(seed, 7);
    for (std::int64_t i = 0; i < count; ++i) e.set(i, draw.normal(static_cast<std::uint64_t>(i)));
    return e;
  }
  std::int64_t size() const { return static_cast<std::int64_t>(dtype_ == DType::f32 ? f32_.size() : bf16_.size()); }
  double operator[](std::int64_t i) const {
    return dtype_ == DType::f32 ? f32_[std::size_t(i)] : to_f32(bf16_[std::size_t(i)]);
  }
  void set(std::int64_t i, float value) {
    if (dtype_ == DType::f32)
      f32_[std::size_t(i)] = value;
    else
      bf16_[std::size_t(i)] = from_f32<bf16>(value);
  }
  void* data() { return dtype_ == DType::f32 ? static_cast<void*>(f32_.data()) : bf16_.data(); }
  void* at(std::int64_t i) { return static_cast<std::byte*>(data()) + i * size_of(dtype_); }
  DType dtype() const { return dtype_; }
  friend bool same_bits(const Elements& a, const Elements& b) {
    return a.size() == b.size() &&
           (a.size() == 0 || std::memcmp(const_cast<Elements&>(a).data(), const_cast<Elements&>(b).data(),
                                         std::size_t(a.size()) * std::size_t(size_of(a.dtype_))) == 0);
  }

 private:
  DType dtype_;
  std::vector<float> f32_;
  std::vector<bf16> bf16_;
};

#if defined(LANCET_HAVE_ONEDNN)
inline const std::vector<MatmulKernel> kKernels = {MatmulKernel::own, MatmulKernel::onednn};
#else
inline const std::vector<MatmulKernel> kKernels = {MatmulKernel::own};
#endif

inline constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

// The tolerance in f32 of a sum of `terms` products whose magnitudes add to `magnitude`: three standard deviations of
// the rounding errors' random walk, plus the rounding of a bf16 result.
inline double tolerance(std::int64_t terms, double magnitude, double value, DType result) {
  const double unit = std::ldexp(1.0, -24);
  const double sum = (3 * std::sqrt(static_cast<double>(terms)) + 4) * unit * magnitude;
  return result == DType::bf16 ? sum + std::ldexp(std::fabs(value) + sum, -8) : sum;
}

}  // namespace lancet::backend::cpu
