// The choice of one token's experts as plain loops over host memory, without devices, threads or tensors. The GPU
// kernels (cuda.cu) decide the same in parallel.
#pragma once
#include <cstdint>

#include "lancet/base/math.h"
#include "math.h"

namespace lancet::ops::routing {

// The experts with the largest keys of those that are added, in falling order. key(e): different for every expert.
template <class Key>
class Largest {
 public:
  Largest(Key key, std::int64_t choices, std::int32_t* expert) : key_(key), choices_(choices), expert_(expert) {}

  void add(std::int64_t e) {
    const std::uint64_t key = key_(e);
    if (found_ == choices_ && key < least_) return;
    std::int64_t at = found_ < choices_ ? found_++ : choices_ - 1;
    for (; at > 0 && key_(expert_[at - 1]) < key; --at) expert_[at] = expert_[at - 1];
    expert_[at] = std::int32_t(e);
    least_ = key_(expert_[found_ - 1]);
  }

 private:
  Key key_;
  std::int64_t choices_, found_ = 0;
  std::int32_t* expert_;     // [choices]
  std::uint64_t least_ = 0;  // the key of the last one found
};

// Finds the `choices` experts with the largest logits [E], in falling order, equals by rising expert. The result is
// always as many different experts, whatever the logits are.
inline void choose(const float* logits, std::int64_t experts, std::int64_t choices, std::int32_t* expert) {
  Largest largest([=](std::int64_t e) { return choice_key(logits[e], std::uint32_t(e)); }, choices, expert);
  for (std::int64_t e = 0; e < experts; ++e) largest.add(e);
}

// The sum of values [E], in the order of top_k/math.h.
inline float ordered_sum(const float* values, std::int64_t experts) {
  float sums[partial_sum_count] = {};
  for (std::int64_t e = 0; e < experts; ++e) sums[e % partial_sum_count] += values[e];
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
