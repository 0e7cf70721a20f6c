// How gates give slots, as plain loops over host memory without devices, threads or tensors.
//
// A gate differs from another in the order in which it serves the entries, the choices of the tokens: an expert keeps
// the first `capacity` of its entries of each group and drops the others. Which entries are kept depends on the order,
// but the kept ones always get their slots in token order. A skipped entry (token_slots.h) may be among the first ones,
// but gets no slot. The GPU kernels (cuda.cu) decide the same in parallel.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>

#include "decision.h"

namespace lancet::ops::routing {

// Sorts tokens by falling weight of their first choice, equals by rising token. weight: [T,K]. keys has one entry per
// token; afterwards the low half of keys[i] is the i-th token. With choices = 1 it sorts entries by their weights.
inline void prioritize(const float* weight, std::int64_t choices, std::span<std::uint64_t> keys) {
  for (std::size_t t = 0; t < keys.size(); ++t)
    keys[t] = std::uint64_t(service_key(weight[std::int64_t(t) * choices])) << 32 | t;
  std::sort(keys.begin(), keys.end());
}

// The i-th entry that a gate serves. priority: see prioritize, of tokens or, served by weight, of entries; empty: in
// token order.
inline std::int64_t served(const Decision& d, Service service, std::span<const std::uint64_t> priority,
                           std::int64_t i) {
  if (service == Service::by_token) return i;
  if (service == Service::by_weight) return std::int64_t(std::uint32_t(priority[std::size_t(i)]));
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
    if (fits || service != Service::by_weight) *d.chosen_load(g, e) += 1.f;  // exact up to 2^24
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

}  // namespace lancet::ops::routing
