// What a gate decides about the tokens of a part of a batch, which host and device write alike.
#pragma once
#include <cstdint>

#include "lancet/base/hd.h"
#include "lancet/ops/kernel.h"
#include "ops/token_slots.h"

namespace lancet::ops::routing {

// The results of a gate (gate/op.cpp) for T tokens, E experts and G groups, and what they depend on.
struct Decision {
  std::int64_t tokens = 0, experts = 0, groups = 0, capacity = 0;
  std::int64_t loads = 1;                             // L; equal numbers of neighbouring groups share a load
  std::int64_t first = 0;                             // the part's first token among those of the whole batch
  std::int64_t group_tokens = 0;                      // tokens of a group
  const std::int32_t* before = nullptr;               // [G,E]: counts of the part before, or null
  std::int32_t *expert = nullptr, *slot = nullptr;    // [T]
  float* weight = nullptr;                            // [T]
  std::int32_t *counts = nullptr, *filled = nullptr;  // [G,E], [E,2]
  float *probabilities = nullptr, *load = nullptr;    // [T,E], [2L,E]

  // The group of the part's token t.
  LANCET_HD std::int64_t group(std::int64_t t) const { return (first + t) / group_tokens; }
  // Where the load of group g has the number of tokens that chose the expert.
  LANCET_HD float* chosen_load(std::int64_t g, std::int64_t e) const {
    const std::int32_t run = std::int32_t(g * loads) / std::int32_t(groups);  // 64 bits would need a stack on a GPU
    return load + 2 * run * experts + e;
  }
  // Where it has the number of those that were kept.
  LANCET_HD float* kept_load(std::int64_t g, std::int64_t e) const { return chosen_load(g, e) + experts; }
  // The tokens of a group that the expert has kept before this part.
  LANCET_HD std::int32_t kept_before(std::int64_t g, std::int64_t e) const {
    return before ? before[g * experts + e] : 0;
  }
};

inline Decision decision_of(const KernelArgs& args) {
  const Shape& logits = args.operands[0].shape();
  Decision d;
  d.tokens = logits.rows(), d.experts = logits.back();
  d.groups = args.attributes.integer("groups"), d.capacity = args.attributes.integer("capacity");
  d.loads = args.results[6].shape()[0] / 2;
  d.first = args.attributes.integer("part", 0) * d.tokens;
  d.group_tokens = args.attributes.integer("parts", 1) * d.tokens / d.groups;
  d.before = args.has(1) ? args.operands[1].as<std::int32_t>() : nullptr;
  d.expert = args.results[0].as<std::int32_t>(), d.slot = args.results[1].as<std::int32_t>();
  d.weight = args.results[2].as<float>();
  d.counts = args.results[3].as<std::int32_t>(), d.filled = args.results[4].as<std::int32_t>();
  d.probabilities = args.results[5].as<float>(), d.load = args.results[6].as<float>();
  return d;
}

}  // namespace lancet::ops::routing
