// What a gate decides about the choices of a part of a batch, which host and device write alike.
//
// Entry i = t * K + k is the k-th choice of token t. Where first choices are served first, it may be a skipped one
// (token_slots.h). Where experts choose, K = E and choice k is expert k.
#pragma once
#include <cstdint>

#include "lancet/base/check.h"
#include "lancet/base/hd.h"
#include "lancet/ops/kernel.h"
#include "ops/token_slots.h"

namespace lancet::ops::routing {

// The order in which a gate serves the entries of a group; an expert keeps the first of its entries.
enum class Service : std::uint8_t {
  by_token,   // token after token, each with all its choices
  by_choice,  // all first choices before all second ones, each in the order of priority, equals by token
};

// The results of a gate (slots/op.cpp) for T * K entries, E experts and G groups, and what they depend on.
struct Decision {
  std::int64_t entries = 0, choices = 1;  // T * K; K
  std::int64_t experts = 0, groups = 0, capacity = 0;
  std::int64_t loads = 1;                             // L; equal numbers of neighbouring groups share a load
  std::int64_t first = 0;                             // the part's first entry among those of the whole batch
  std::int64_t group_entries = 0;                     // entries of a group
  const std::int32_t* expert = nullptr;               // [T*K], or null where experts choose
  const std::int32_t* before = nullptr;               // [G,E]: counts of the part before, or null
  std::int32_t* slot = nullptr;                       // [T*K]
  std::int32_t *counts = nullptr, *filled = nullptr;  // [G,E], [E,2]
  float* load = nullptr;                              // [2L,E]

  // The group of the part's entry i.
  LANCET_HD std::int64_t group(std::int64_t i) const { return (first + i) / group_entries; }
  // Where the load of group g has the number of entries that chose the expert.
  LANCET_HD float* chosen_load(std::int64_t g, std::int64_t e) const {
    const std::int32_t run = std::int32_t(g * loads) / std::int32_t(groups);  // 64 bits would need a stack on a GPU
    return load + 2 * run * experts + e;
  }
  // Where it has the number of those that were kept.
  LANCET_HD float* kept_load(std::int64_t g, std::int64_t e) const { return chosen_load(g, e) + experts; }
  // The entries of a group that the expert has kept before this part.
  LANCET_HD std::int32_t kept_before(std::int64_t g, std::int64_t e) const {
    return before ? before[g * experts + e] : 0;
  }
};

// Operand 0 is the experts of the entries or, where experts choose, the entries' weights. before: the operand with the
// counts of the part before, if the op takes one.
inline Decision decision_of(const KernelArgs& args, const TensorView* before) {
  const TensorView& entries = args.operands[0];
  Decision d;
  d.entries = entries.elements(), d.choices = entries.shape()[1];
  LANCET_CHECK(d.entries < std::int64_t{1} << 24, "a gate counts up to 2^24 choices, found {}", d.entries);
  d.experts = args.attributes.integer("experts");
  d.groups = args.attributes.integer("groups"), d.capacity = args.attributes.integer("capacity");
  d.loads = args.results[3].shape()[0] / 2;
  d.first = args.attributes.integer("part", 0) * d.entries;
  d.group_entries = args.attributes.integer("parts", 1) * d.entries / d.groups;
  d.expert = entries.dtype() == DType::i32 ? entries.as<std::int32_t>() : nullptr;
  d.before = before ? before->as<std::int32_t>() : nullptr;
  d.slot = args.results[0].as<std::int32_t>(), d.counts = args.results[1].as<std::int32_t>();
  d.filled = args.results[2].as<std::int32_t>(), d.load = args.results[3].as<float>();
  return d;
}

// Gates that serve by priority do so by rising key, equal keys by token. Floats that are not negative have the order of
// their bits, which is total even with NaN.
LANCET_HD std::uint32_t service_key(float weight) {
  std::uint32_t bits;
  memcpy(&bits, &weight, 4);
  return ~bits;
}

}  // namespace lancet::ops::routing
