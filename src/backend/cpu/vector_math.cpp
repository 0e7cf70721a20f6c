#include "lancet/backend/cpu/vector_math.h"

#include "simd.h"

namespace lancet::backend::cpu {

namespace {
template <class In, class Out>
void convert_all(const In* in, Out* out, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) simd::store(out + i, simd::load(in + i));
  for (; i < n; ++i) out[i] = from_f32<Out>(to_f32(in[i]));
}
}  // namespace

void convert(const float* in, bf16* out, std::int64_t n) { convert_all(in, out, n); }
void convert(const bf16* in, float* out, std::int64_t n) { convert_all(in, out, n); }

}  // namespace lancet::backend::cpu
