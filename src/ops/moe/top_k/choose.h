// The choice of one token's experts as plain loops over host memory, without devices, threads or tensors. The GPU
// kernels (cuda.cu) decide the same in parallel.
#pragma once
#include <cstdint>

#include "lancet/base/math.h"
#include "math.h"

namespace lancet::ops::routing {

// The logit by which an expert is chosen, in the order of choice_key: equals by rising expert.
inline float choice_number(float logit, std::int64_t expert) {
  if (logit == logit) return logit;
  return expert == 0 ? __builtin_huge_valf() : -__builtin_huge_valf();
}
inline constexpr float never_chosen = __builtin_nanf("");

// Reduces n values to one: value(e) of each, by pick(one, other). Lanes of their own make it a loop over vectors.
template <class T, class Value, class Pick>
T reduce(T start, std::int32_t n, Value value, Pick pick) {
  constexpr std::int32_t lanes = 8;
  T lane[lanes];
  for (T& each : lane) each = start;
  const std::int32_t whole = n / lanes * lanes;
  for (std::int32_t e = 0; e < whole; e += lanes)
    for (std::int32_t l = 0; l < lanes; ++l) lane[l] = pick(lane[l], value(e + l));
  for (std::int32_t e = whole; e < n; ++e) lane[0] = pick(lane[0], value(e));
  for (std::int32_t l = 1; l < lanes; ++l) lane[0] = pick(lane[0], lane[l]);
  return lane[0];
}

// Finds the `choices` experts with the largest numbers [E], in falling order, equals by rising expert, and leaves
// never_chosen in their places.
inline void choose(float* numbers, std::int64_t experts, std::int64_t choices, std::int32_t* expert) {
  const auto end = std::int32_t(experts);
  for (std::int64_t k = 0; k < choices; ++k) {
    const float best = reduce(
        -__builtin_huge_valf(), end, [=](std::int32_t e) { return numbers[e]; },
        [](float one, float other) { return other > one ? other : one; });
    expert[k] = reduce(
        end, end, [=](std::int32_t e) { return numbers[e] == best ? e : end; },
        [](std::int32_t one, std::int32_t other) { return other < one ? other : one; });
    numbers[expert[k]] = never_chosen;
  }
}

// Finds the experts with a token's largest logits [E]: always as many different ones, whatever the logits are. numbers:
// [E], for its own use.
inline void choose(const float* logits, float* numbers, std::int64_t experts, std::int64_t choices,
                   std::int32_t* expert) {
  for (std::int64_t e = 0; e < experts; ++e) numbers[e] = choice_number(logits[e], e);
  choose(numbers, experts, choices, expert);
}

// The sum of values [E], in the order of top_k/math.h.
inline float ordered_sum(const float* values, std::int64_t experts) {
  float sums[partial_sum_count] = {};
  const std::int64_t whole = experts / partial_sum_count * partial_sum_count;
  for (std::int64_t e = 0; e < whole; e += partial_sum_count)
    for (int l = 0; l < partial_sum_count; ++l) sums[l] += values[e + l];
  for (std::int64_t e = whole; e < experts; ++e) sums[e - whole] += values[e];
  for (int half = partial_sum_count / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) sums[l] += sums[l + half];
  return sums[0];
}

// Softmax of one token's logits [E] in f32. largest: the first choice.
inline void softmax(const float* logits, std::int32_t largest, float* scores, std::int64_t experts) {
  for (std::int64_t e = 0; e < experts; ++e) scores[e] = exp_f32(logits[e] - logits[largest]);
  const float sum = ordered_sum(scores, experts);
  for (std::int64_t e = 0; e < experts; ++e) scores[e] /= sum;
}

// The weights of the choices: their scores, or their shares of the sum of the chosen scores, added in their order.
inline void weigh(const float* scores, const std::int32_t* expert, std::int64_t choices, bool normalized,
                  float* weight) {
  float sum = 0;
  for (std::int64_t k = 0; k < choices; ++k) sum += weight[k] = scores[expert[k]];
  for (std::int64_t k = 0; k < choices && normalized; ++k) weight[k] /= sum;
}

// The choices of one token and all that their gradients need. scores: [E].
inline ChosenGradient chosen_gradient(const std::int32_t* expert, const float* dweight, std::int64_t choices,
                                      bool normalized, const float* scores) {
  ChosenGradient chosen{expert, dweight, choices, normalized};
  chosen.find_sums([=](std::int32_t e) { return scores[e]; }, 0.f, 0, 1, [](float sum) { return sum; });
  return chosen;
}

// The gradient of softmax: dlogits = p * (dp - p . dp), where dp is that of the chosen experts plus `shared` [E], if
// not null.
inline void softmax_backward(const float* scores, const ChosenGradient& chosen, const float* shared, float* dlogits,
                             std::int64_t experts) {
  float dot = scores[chosen.expert[0]] * chosen.of_choice(0);
  for (std::int64_t k = 1; k < chosen.choices; ++k) dot += scores[chosen.expert[k]] * chosen.of_choice(k);
  if (shared)
    for (std::int64_t e = 0; e < experts; ++e) dot += scores[e] * shared[e];
  const auto dlogit = [&](std::int64_t e, float own) {
    return softmax_dlogit(scores[e], (shared ? shared[e] : 0.f) + own, dot);
  };
  for (std::int64_t e = 0; e < experts; ++e) dlogits[e] = dlogit(e, 0.f);
  for (std::int64_t k = 0; k < chosen.choices; ++k) {
    const std::int64_t e = chosen.expert[k];
    dlogits[e] = dlogit(e, chosen.of_choice(k));
  }
}

}  // namespace lancet::ops::routing
