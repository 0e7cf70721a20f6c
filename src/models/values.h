// Converts values between a file's tensor and a parameter of the model: types, and the transposition of Conv1D weights.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "lancet/base/dtype.h"
#include "names.h"

namespace lancet::models {

bool is_weight_type(std::string_view dtype);  // true for F32, F16, BF16
void to_floats(std::string_view dtype, std::span<const std::byte> bytes, std::span<float> values);
void from_floats(DType dtype, std::span<const float> values, std::span<std::byte> bytes);

// Offset of an entry's values in its parameter, in bytes of f32. In a padded vocabulary the real tokens come first.
std::size_t first_byte(const Entry& entry);

// to[c, r] = from[r, c]
void transpose(std::span<const float> from, std::int64_t rows, std::int64_t columns, std::span<float> to);

}  // namespace lancet::models
