// Layer norm and its gradient for one element, given the statistics of its row.
#pragma once
#include "lancet/base/hd.h"

namespace lancet::ops {

// The statistics of a row, in the order in which the tensor stats holds them.
struct RowStats {
  float mean, rstd;  // rstd: 1 / sqrt(variance + eps)
};

LANCET_HD float normalized(float x, RowStats row) { return (x - row.mean) * row.rstd; }

LANCET_HD float layer_norm(float x, RowStats row, float gamma, float beta) { return normalized(x, row) * gamma + beta; }

// mean_g and mean_gx: the means over the row of g = dy * gamma and of g * normalized x.
LANCET_HD float layer_norm_dx(float dy, float x, RowStats row, float gamma, float mean_g, float mean_gx) {
  return row.rstd * (dy * gamma - mean_g - normalized(x, row) * mean_gx);
}

}  // namespace lancet::ops
