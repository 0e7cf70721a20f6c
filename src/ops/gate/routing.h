// The routing arithmetic that all gates share, as plain loops over host memory without devices, threads or tensors.
//
// A gate routes in two or three steps. softmax() finds a token's expert and its probability. A batch-prioritised gate
// then sorts the tokens by probability (prioritize). assign_slots() serves the tokens in that order, or as they come:
// an expert keeps the first `capacity` of its tokens of each group and drops the others. Which tokens are kept depends
// on the order, but the kept tokens always get their slots in token order. The GPU kernels (cuda.cu) decide the same in
// parallel.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>

#include "decision.h"
#include "lancet/base/math.h"
#include "math.h"

namespace lancet::ops::routing {

// Softmax of one token's logits [E] in f32, summed in the order of gate/math.h. Returns the expert with the largest
// logit, the lowest index of equals. A comparison with NaN is false, so the result is always an expert.
inline std::int32_t softmax(const float* logits, float* probabilities, std::int64_t experts) {
  std::int64_t best = 0;
  for (std::int64_t e = 1; e < experts; ++e)
    if (logits[e] > logits[best]) best = e;
  const float largest = logits[best];
  for (std::int64_t e = 0; e < experts; ++e) probabilities[e] = exp_f32(logits[e] - largest);
  float sums[partial_sum_count] = {};
  for (std::int64_t e = 0; e < experts; ++e) sums[e % partial_sum_count] += probabilities[e];
  for (int half = partial_sum_count / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) sums[l] += sums[l + half];
  for (std::int64_t e = 0; e < experts; ++e) probabilities[e] /= sums[0];
  return std::int32_t(best);
}

// The gradient of softmax: dlogits = p * (dp - p . dp), where dp is `dweight` at the chosen expert plus `shared` [E],
// if not null.
inline void softmax_backward(const float* probabilities, std::int32_t chosen, float dweight, const float* shared,
                             float* dlogits, std::int64_t experts) {
  float dot = probabilities[chosen] * dweight;
  if (shared)
    for (std::int64_t e = 0; e < experts; ++e) dot += probabilities[e] * shared[e];
  for (std::int64_t e = 0; e < experts; ++e) {
    const float dp = (shared ? shared[e] : 0.f) + (e == chosen ? dweight : 0.f);
    dlogits[e] = softmax_dlogit(probabilities[e], dp, dot);
  }
}

// Sorts tokens into the order in which a batch-prioritised gate serves them: by falling probability of the chosen
// expert, equals by rising token. Floats that are not negative have the order of their bits, which is total even with
// NaN. keys has one entry per token; afterwards the low half of keys[i] is the i-th token.
inline void prioritize(const float* weight, std::span<std::uint64_t> keys) {
  for (std::size_t t = 0; t < keys.size(); ++t) keys[t] = std::uint64_t(service_key(weight[t])) << 32 | t;
  std::sort(keys.begin(), keys.end());
}

// Serves the tokens in the order of `order` (see prioritize; empty: as they come), so that a range of tokens fills a
// range of slots. Reads expert and sets slot, counts, filled and load.
inline void assign_slots(const Decision& d, std::span<const std::uint64_t> order) {
  std::fill_n(d.load, 2 * d.loads * d.experts, 0.f);
  std::fill_n(d.filled, 2 * d.experts, 0);
  for (std::int64_t g = 0; g < d.groups; ++g)
    for (std::int64_t e = 0; e < d.experts; ++e) {
      d.counts[g * d.experts + e] = d.kept_before(g, e);
      d.filled[2 * e] += d.kept_before(g, e);
    }
  for (std::int64_t i = 0; i < d.tokens; ++i) {
    const std::int64_t t = order.empty() ? i : std::int64_t(std::uint32_t(order[std::size_t(i)]));
    const std::int32_t e = d.expert[t];
    const std::int64_t g = d.group(t);
    std::int32_t& kept = d.counts[g * d.experts + e];
    *d.chosen_load(g, e) += 1.f;  // exact up to 2^24 tokens
    if (kept < d.capacity) *d.kept_load(g, e) += 1.f;
    d.slot[t] = kept < d.capacity ? kept++ : dropped;
  }
  for (std::int64_t e = 0; e < d.experts; ++e) d.filled[2 * e + 1] = d.filled[2 * e];
  for (std::int64_t t = 0; t < d.tokens; ++t)
    if (d.slot[t] != dropped) d.slot[t] = d.filled[2 * d.expert[t] + 1]++;
}

}  // namespace lancet::ops::routing
