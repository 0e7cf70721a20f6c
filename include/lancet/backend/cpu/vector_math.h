// Conversions over arrays. Element-wise formulas are in base/math.h and vectorise where a loop uses them.
#pragma once
#include <cstdint>

#include "lancet/base/dtype.h"
#include "lancet/base/math.h"

namespace lancet::backend::cpu {

// Single-threaded, unaligned pointers allowed, no overlap. To bf16: nearest even, as from_f32<bf16>.
void convert(const float* in, bf16* out, std::int64_t n);
void convert(const bf16* in, float* out, std::int64_t n);

}  // namespace lancet::backend::cpu
