// The choice of one token's experts by sigmoid scores, as plain loops over host memory. The GPU kernels (cuda.cu)
// decide the same in parallel.
#pragma once
#include "math.h"
#include "ops/moe/top_k/choose.h"

namespace lancet::ops::routing {

struct SigmoidChoice {
  std::int64_t experts = 0, choices = 1, groups = 1, open = 1;  // open: groups that a token may choose from
  bool normalized = false;
  float scale = 1;
  const float* bias = nullptr;  // [E], or null
};

// Chooses by s + bias among the experts of the open groups. numbers [E]: s, for its own use.
inline void choose_sigmoid(const SigmoidChoice& c, float* numbers, std::int32_t* expert) {
  const std::int64_t size = c.experts / c.groups;
  const auto rank = [&](std::int64_t e) { return numbers[e] + (c.bias ? c.bias[e] : 0.f); };
  std::uint64_t open = ~std::uint64_t{0};
  if (c.open < c.groups) {
    std::uint64_t keys[most_expert_groups];
    for (std::int64_t g = 0; g < c.groups; ++g) keys[g] = group_key(rank, g * size, (g + 1) * size, std::uint32_t(g));
    open = open_groups(keys, c.groups, c.open);
  }
  for (std::int64_t g = 0; g < c.groups; ++g)
    for (std::int64_t e = g * size; e < (g + 1) * size; ++e)
      numbers[e] = (open >> g & 1) != 0 ? choice_number(rank(e), e) : never_chosen;
  choose(numbers, c.experts, c.choices, expert);
}

// expert [K], weight [K] and scores [E] of a token's logits [E].
inline void route_sigmoid(const SigmoidChoice& c, const float* logits, std::int32_t* expert, float* weight,
                          float* scores) {
  for (std::int64_t e = 0; e < c.experts; ++e) scores[e] = sigmoid_f32(logits[e]);
  choose_sigmoid(c, scores, expert);
  for (std::int64_t e = 0; e < c.experts; ++e) scores[e] = sigmoid_f32(logits[e]);
  float sum = 0;
  for (std::int64_t k = 0; k < c.choices; ++k) sum += weight[k] = scores[expert[k]];
  for (std::int64_t k = 0; k < c.choices; ++k)
    weight[k] = (c.normalized ? weight[k] / (sum + least_sum) : weight[k]) * c.scale;
  const float all = ordered_sum(scores, c.experts) + least_sum;
  for (std::int64_t e = 0; e < c.experts; ++e) scores[e] /= all;
}

// The choices of one token and all that their gradients need. logits: [E].
inline ChosenGradient chosen_sigmoids(const std::int32_t* expert, const float* dweight, std::int64_t choices,
                                      bool normalized, float scale, const float* logits) {
  ChosenGradient chosen{expert, dweight, choices, normalized, scale};
  chosen.find_sums([=](std::int32_t e) { return sigmoid_f32(logits[e]); }, least_sum, 0, 1,
                   [](float sum) { return sum; });
  return chosen;
}

// The gradient of a token's logits [E]. shared: the gradient of all scores [E], or null. A score is p_e = s_e / sum_f
// s_f, hence ds_e = (dp_e - p . dp) / sum_f s_f, to which the chosen experts' own gradients are added.
inline void sigmoid_backward(const ChosenGradient& chosen, const float* logits, const float* shared, float* dlogits,
                             std::int64_t experts) {
  for (std::int64_t e = 0; e < experts; ++e) dlogits[e] = sigmoid_f32(logits[e]);
  const float all = ordered_sum(dlogits, experts) + least_sum;
  float dot = 0;
  for (std::int64_t e = 0; e < experts && shared; ++e) dot += shared[e] * (dlogits[e] / all);
  const auto of_score = [&](std::int64_t e) { return shared ? (shared[e] - dot) / all : 0.f; };
  for (std::int64_t e = 0; e < experts; ++e) dlogits[e] = sigmoid_dlogit(dlogits[e], of_score(e));
  for (std::int64_t k = 0; k < chosen.choices; ++k) {
    const std::int64_t e = chosen.expert[k];
    dlogits[e] = sigmoid_dlogit(sigmoid_f32(logits[e]), of_score(e) + chosen.of_choice(k));
  }
}

}  // namespace lancet::ops::routing
