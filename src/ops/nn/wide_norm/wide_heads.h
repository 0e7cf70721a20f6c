// The features of a row of qkv as a norm over the full width sees them, for both devices.
#pragma once
#include <cstdint>

#include "lancet/base/dtype.h"
#include "lancet/base/hd.h"
#include "lancet/ir/program.h"

namespace lancet::ops {

struct WideHeads {
  std::int64_t queries, keys;  // features: those of q, then as many of k as of v
  float of_queries, of_keys;   // those of all shards, over which the means are; 0 where there is no norm
  float eps, clip;             // clip 0: no limit

  explicit WideHeads(const ir::Attributes& at)
      : queries(at.integer("heads") * at.integer("group", 1) * at.integer("head_dim")),
        keys(at.integer("heads") * at.integer("head_dim")),
        of_queries(float(at.integer("all_heads", 0) * at.integer("group", 1) * at.integer("head_dim"))),
        of_keys(float(at.integer("all_heads", 0) * at.integer("head_dim"))),
        eps(float(at.real("eps", 0))),
        clip(float(at.real("clip", 0))) {}
  LANCET_HD std::int64_t normed() const { return queries + keys; }
  LANCET_HD std::int64_t width() const { return queries + 2 * keys; }
  // 1 / sqrt(mean(x^2) + eps) of q (which = 0) or k (1) of a row with these sums of squares.
  LANCET_HD float scale(const float* squares, int which) const {
    return 1.f / __builtin_sqrtf(squares[which] / (which == 0 ? of_queries : of_keys) + eps);
  }
  // The normed feature before the limit; whether a feature is within it.
  template <class T>
  LANCET_HD static float normed(T x, float scale, float gamma) {
    return to_f32(from_f32<T>(to_f32(x) * scale)) * gamma;
  }
  LANCET_HD bool is_within(float y) const { return clip <= 0.f || (y <= clip && y >= -clip); }
  LANCET_HD float limited(float y) const {
    if (clip <= 0.f) return y;
    return y > clip ? clip : y < -clip ? -clip : y;  // NaN stays
  }
  // The gradient of a row's sum of squares, of the sum of dy * gamma * x.
  LANCET_HD float of_squares(const float* squares, int which, float sum) const {
    const float s = scale(squares, which);
    return -0.5f * s * s * s * sum / (which == 0 ? of_queries : of_keys);
  }
};

}  // namespace lancet::ops
