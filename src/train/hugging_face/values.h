// Values of a file's tensor and of our parameter: types, and the transposition of Conv1D weights.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "names.h"

namespace lancet::train::hugging_face {

// The types that weights come in.
bool is_weight_type(std::string_view dtype);  // F32, F16, BF16
void to_floats(std::string_view dtype, std::span<const std::byte> bytes, std::span<float> values);
void from_floats(DType dtype, std::span<const float> values, std::span<std::byte> bytes);

// Where an entry's values lie in its parameter, which has `rows` elements along its first axis.
std::span<float> place_of(const Entry& entry, std::span<float> parameter, std::int64_t rows);

// to[c, r] = from[r, c]
void transpose(std::span<const float> from, std::int64_t rows, std::int64_t columns, std::span<float> to);

}  // namespace lancet::train::hugging_face
