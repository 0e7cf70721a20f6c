// Layer norm and RMS norm and their gradients for one element, given the statistics of its row.
#pragma once
#include "lancet/base/dtype.h"
#include "lancet/base/hd.h"

namespace lancet::ops {

// The statistics of a row of a layer norm, in the order in which the tensor stats holds them, and of an RMS norm.
struct RowStats {
  static constexpr bool centred = true;
  float mean, rstd;  // rstd: 1 / sqrt(variance + eps)
};
struct RmsStats {
  static constexpr bool centred = false;
  float rstd;  // 1 / sqrt(mean square + eps)
};

LANCET_HD float normalized(float x, RowStats row) { return (x - row.mean) * row.rstd; }
LANCET_HD float normalized(float x, RmsStats row) { return x * row.rstd; }

LANCET_HD float layer_norm(float x, RowStats row, float gamma, float beta) { return normalized(x, row) * gamma + beta; }

// As in the published models, what is normalized is rounded to the type of x before it is multiplied.
template <class T>
LANCET_HD float rms_norm(float x, RmsStats row, float gamma) {
  return to_f32(from_f32<T>(normalized(x, row))) * gamma;
}

// mean_g and mean_gx: the means over the row of g = dy * gamma, or 0 of an RMS norm, and of g * normalized x.
template <class Stats>
LANCET_HD float norm_dx(float dy, float x, Stats row, float gamma, float mean_g, float mean_gx) {
  return row.rstd * (dy * gamma - mean_g - normalized(x, row) * mean_gx);
}

}  // namespace lancet::ops
