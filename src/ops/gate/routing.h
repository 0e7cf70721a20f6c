// The routing arithmetic that all gates share, as plain loops over host memory without devices, threads or tensors.
//
// A gate routes in two or three steps. softmax() finds a token's expert and its probability. A batch-prioritised gate
// then sorts the tokens by probability (prioritize). assign_slots() serves the tokens in that order, or as they come:
// an expert keeps the first `capacity` of its tokens and drops the others. Which tokens are kept depends on the order,
// but the kept tokens always get their slots in token order. The GPU kernels (cuda.cu) make the same route in parallel.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>

#include "lancet/base/math.h"
#include "lancet/ir/route_layout.h"
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

// Serves the tokens in the order of `order` (see prioritize; empty: as they come), so that a range of tokens owns a
// range of slots. Reads route.expert and sets slot, begin and end. Slots begin at `before` [E], the `end` of the part
// before, or at 0 if it is null. Sets load f32[2,E] to the number of this part's tokens that chose each expert, and of
// those that were kept.
inline void assign_slots(const ir::RouteLayout& layout, void* route, std::int64_t capacity,
                         std::span<const std::uint64_t> order, const std::int32_t* before, float* load) {
  const std::int32_t* expert = layout.expert(route);
  std::int32_t *slot = layout.slot(route), *begin = layout.begin(route), *end = layout.end(route);
  for (std::int64_t e = 0; e < layout.experts; ++e) begin[e] = end[e] = before ? before[e] : 0;
  std::fill_n(load, 2 * layout.experts, 0.f);
  for (std::int64_t i = 0; i < layout.tokens; ++i) {
    const std::int64_t t = order.empty() ? i : std::int64_t(std::uint32_t(order[std::size_t(i)]));
    const std::int32_t e = expert[t];
    slot[t] = end[e] < capacity ? end[e]++ : ir::RouteLayout::dropped;
    load[e] += 1.f;  // exact up to 2^24 tokens
  }
  for (std::int64_t e = 0; e < layout.experts; ++e) load[layout.experts + e] = float(end[e] - begin[e]);
  if (order.empty()) return;
  std::copy_n(begin, layout.experts, end);
  for (std::int64_t t = 0; t < layout.tokens; ++t)
    if (slot[t] != ir::RouteLayout::dropped) slot[t] = end[expert[t]]++;
}

}  // namespace lancet::ops::routing
