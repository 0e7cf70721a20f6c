// The extents of a tensor, row-major. At most 6 axes, held inline.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "lancet/base/check.h"

namespace lancet {

class Shape {
 public:
  static constexpr int max_rank = 6;
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims) {
    for (std::int64_t d : dims) push_back(d);
  }
  int rank() const { return rank_; }
  std::int64_t operator[](int axis) const { return dims_[static_cast<std::size_t>(axis < 0 ? axis + rank_ : axis)]; }
  void set(int axis, std::int64_t extent) { dims_[static_cast<std::size_t>(axis < 0 ? axis + rank_ : axis)] = extent; }
  void push_back(std::int64_t extent) {
    LANCET_CHECK(rank_ < max_rank, "a shape has at most {} axes", max_rank);
    dims_[static_cast<std::size_t>(rank_++)] = extent;
  }
  std::int64_t back() const { return (*this)[-1]; }
  std::int64_t elements() const {
    std::int64_t n = 1;
    bool overflow = false;
    for (std::int64_t d : span()) overflow |= __builtin_mul_overflow(n, d, &n);
    LANCET_CHECK(!overflow, "a tensor of rank {} has more than 2^63 elements", rank_);
    return n;
  }
  // Product of all axes but the last: the rows of a row op.
  std::int64_t rows() const { return rank_ == 0 ? 1 : elements() / (back() ? back() : 1); }
  std::span<const std::int64_t> span() const { return {dims_.data(), static_cast<std::size_t>(rank_)}; }
  friend bool operator==(const Shape&, const Shape&) = default;  // dims_ beyond rank_ are 0

 private:
  std::array<std::int64_t, max_rank> dims_{};
  int rank_ = 0;
};

// "8,256,512"
inline std::string to_string(const Shape& shape) {
  std::string text;
  for (const std::int64_t extent : shape.span()) text += (text.empty() ? "" : ",") + std::to_string(extent);
  return text;
}

}  // namespace lancet
