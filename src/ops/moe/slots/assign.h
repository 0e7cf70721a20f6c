// How gates give slots, as plain loops over host memory without devices, threads or tensors.
//
// A gate differs from another in the order in which it serves the entries, the choices of the tokens: an expert keeps
// the first `capacity` of its entries of each group and drops the others. Which entries are kept depends on the order,
// but the kept ones always get their slots in token order. A skipped entry (token_slots.h) may be among the first ones,
// but gets no slot. Where experts choose, each finds its tokens alone (choose_tokens). The GPU kernels (cuda.cu) decide
// the same in parallel.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>

#include "decision.h"

namespace lancet::ops::routing {

// Sorts tokens by falling weight of their first choice, equals by rising token. weight: [T,K]. keys has one entry per
// token; afterwards the low half of keys[i] is the i-th token.
inline void prioritize(const float* weight, std::int64_t choices, std::span<std::uint64_t> keys) {
  for (std::size_t t = 0; t < keys.size(); ++t)
    keys[t] = std::uint64_t(service_key(weight[std::int64_t(t) * choices])) << 32 | t;
  std::sort(keys.begin(), keys.end());
}

// The i-th entry that a gate serves. priority: see prioritize; empty: in token order.
inline std::int64_t served(const Decision& d, Service service, std::span<const std::uint64_t> priority,
                           std::int64_t i) {
  if (service == Service::by_token) return i;
  const std::int64_t tokens = d.entries / d.choices, at = i % tokens;
  const std::int64_t t = priority.empty() ? at : std::int64_t(std::uint32_t(priority[std::size_t(at)]));
  return t * d.choices + i / tokens;
}

// Serves the entries: sets the slot of those that are dropped, and counts in load and, for each group and expert, the
// entries among the first `capacity` in counts, which has those of the part before.
inline void count_served(const Decision& d, Service service, std::span<const std::uint64_t> priority) {
  for (std::int64_t n = 0; n < d.entries; ++n) {
    const std::int64_t i = served(d, service, priority, n), g = d.group(i), e = counted_expert(d.expert[i]);
    d.slot[i] = dropped;
    if (e == d.experts) continue;
    std::int32_t& first = d.counts[g * d.experts + e];
    const bool fits = first < d.capacity;
    first += fits;
    if (is_skipped(d.expert[i])) continue;
    *d.chosen_load(g, e) += 1.f;  // exact up to 2^24
    if (!fits) continue;
    *d.kept_load(g, e) += 1.f;
    d.slot[i] = 0;
  }
}

// Serves the entries. A range of tokens fills a range of slots. Reads expert and sets slot, counts, filled and load.
inline void assign_slots(const Decision& d, Service service, std::span<const std::uint64_t> priority) {
  std::fill_n(d.load, 2 * d.loads * d.experts, 0.f);
  std::fill_n(d.filled, 2 * d.experts, 0);
  for (std::int64_t g = 0; g < d.groups; ++g)
    for (std::int64_t e = 0; e < d.experts; ++e) {
      d.counts[g * d.experts + e] = d.kept_before(g, e);
      d.filled[2 * e] += d.kept_before(g, e);
    }
  count_served(d, service, priority);
  for (std::int64_t i = 0; i < d.groups * d.experts; ++i) d.counts[i] = d.before ? d.before[i] : 0;
  for (std::int64_t e = 0; e < d.experts; ++e) d.filled[2 * e + 1] = d.filled[2 * e];
  for (std::int64_t i = 0; i < d.entries; ++i) {
    if (d.slot[i] == dropped) continue;
    d.slot[i] = d.filled[2 * d.expert[i] + 1]++;
    ++d.counts[d.group(i) * d.experts + d.expert[i]];
  }
}

// Expert e takes from each group the `capacity` tokens with its largest weights, equals by rising token, or all if
// there are no more; the others are not chosen. Sets the expert's slots, counts, filled and load. weight: [T,E]. keys:
// memory for one key per token of a group.
inline void choose_tokens(const Decision& d, const float* weight, std::int64_t e, std::span<std::uint64_t> keys) {
  for (std::int64_t row = 0; row < 2 * d.loads; ++row) d.load[row * d.experts + e] = 0;
  const auto tokens = std::int64_t(keys.size()), kept = std::min(d.capacity, tokens);
  std::int32_t next = 0;  // slot
  for (std::int64_t g = 0; g < d.groups; ++g) {
    const std::int64_t first = g * tokens * d.experts + e;
    const auto key = [&](std::int64_t t) {
      return std::uint64_t(service_key(weight[first + t * d.experts])) << 32 | std::uint64_t(t);
    };
    for (std::int64_t t = 0; t < tokens; ++t) keys[std::size_t(t)] = key(t);
    std::nth_element(keys.begin(), keys.begin() + kept - 1, keys.end());
    const std::uint64_t last = keys[std::size_t(kept - 1)];
    for (std::int64_t t = 0; t < tokens; ++t) d.slot[first + t * d.experts] = key(t) <= last ? next++ : dropped;
    d.counts[g * d.experts + e] = std::int32_t(kept);
    *d.chosen_load(g, e) += float(kept);
    *d.kept_load(g, e) += float(kept);
  }
  d.filled[2 * e] = 0;
  d.filled[2 * e + 1] = next;
}

}  // namespace lancet::ops::routing
