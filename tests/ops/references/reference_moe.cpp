// The references of the mixture-of-experts ops, on one rank.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "ops/references/reference_ops.h"

namespace lancet::test {
namespace {

using Index = std::int64_t;

// Calls f(t, i, row) for the entries i of all tokens, the k-th choice of token t being i = t * K + k, with its row in
// the slots [E,C,D], of the experts of c's share, or -1.
template <class F>
void for_entries(const ReferenceCall& c, const DoubleTensor& expert, const DoubleTensor& slot, const Shape& slots,
                 F f) {
  for (Index i = 0; i < expert.shape().elements(); ++i) {
    const Index e = Index(expert[i]), of_share = e - c.place * slots[0];
    const bool is_here = e / slots[0] == c.place && slot[i] >= 0;
    f(i / expert.shape()[1], i, is_here ? of_share * slots[1] + Index(slot[i]) : Index{-1});
  }
}

void top_k(ReferenceCall& c) {  // logits [B,S,E]
  const auto& logits = c.operands[0];
  auto &expert = c.results[0], &weight = c.results[1], &scores = c.results[2];
  const Index T = logits.shape().rows(), E = logits.shape()[2], K = c.attributes.integer("k");
  c.length = double(E);
  for (Index t = 0; t < T; ++t) {
    double sum = 0, chosen = 0;
    for (Index e = 0; e < E; ++e) sum += std::exp(logits[t * E + e]);
    for (Index e = 0; e < E; ++e) scores[t * E + e] = std::exp(logits[t * E + e]) / sum;
    std::vector<Index> order(static_cast<std::size_t>(E));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](Index a, Index b) { return logits[t * E + a] > logits[t * E + b]; });
    for (Index k = 0; k < K; ++k) {
      const Index e = order[std::size_t(k)];
      expert[t * K + k] = double(e);
      chosen += std::exp(logits[t * E + e]);
    }
    const bool normalized = c.attributes.integer("normalize", 0) != 0;  // a softmax over the chosen logits
    for (Index k = 0; k < K; ++k)
      weight[t * K + k] = std::exp(logits[t * E + Index(expert[t * K + k])]) / (normalized ? chosen : sum);
  }
}

enum class Order { by_token, by_choice, by_priority, by_weight };

// The entries in the order in which a gate serves them.
std::vector<Index> service_order(const ReferenceCall& c, Order rule) {
  const Index T = c.operands[0].shape()[0], K = c.operands[0].shape()[1];
  std::vector<Index> tokens(static_cast<std::size_t>(T)), order;
  std::iota(tokens.begin(), tokens.end(), 0);
  if (rule == Order::by_priority)
    std::stable_sort(tokens.begin(), tokens.end(),
                     [&](Index a, Index b) { return c.operands[1][a * K] > c.operands[1][b * K]; });
  if (rule == Order::by_weight) {
    for (Index i = 0; i < T * K; ++i) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return c.operands[0][a] > c.operands[0][b]; });
  } else if (rule == Order::by_token) {
    for (Index i = 0; i < T * K; ++i) order.push_back(i);
  } else {
    for (Index k = 0; k < K; ++k)
      for (const Index t : tokens) order.push_back(t * K + k);
  }
  return order;
}

// The experts of the entries: where experts choose, a token's k-th choice is expert k.
DoubleTensor experts_of(const ReferenceCall& c, Order rule) {
  DoubleTensor expert = c.operands[0];
  const Index E = expert.shape()[1];
  for (Index i = 0; i < expert.shape().elements() && rule == Order::by_weight; ++i) expert[i] = double(i % E);
  return expert;
}

void gate(ReferenceCall& c, Order rule) {
  const DoubleTensor expert = experts_of(c, rule);
  auto &slot = c.results[0], &counts = c.results[1], &filled = c.results[2], &load = c.results[3];
  const Index N = expert.shape().elements(), G = counts.shape()[0], E = counts.shape()[1];
  const Index parts = c.attributes.integer("parts", 1), first = N * c.attributes.integer("part", 0);
  std::fill(load.values.begin(), load.values.end(), 0.0);
  for (Index i = 0; i < G * E; ++i) counts[i] = rule == Order::by_token && c.has(1) ? c.operands[1][i] : 0;
  auto kept_of = [&](Index e) {
    double kept = 0;
    for (Index g = 0; g < G; ++g) kept += counts[g * E + e];
    return kept;
  };
  for (Index e = 0; e < E; ++e) filled[2 * e] = kept_of(e);
  std::vector<double> served(counts.values);  // entries that have counted towards the capacity
  for (const Index i : service_order(c, rule)) {
    const bool skipped = expert[i] < 0;  // -1 - e: an entry of e that gets no slot; -1 - E: one of no expert
    const Index e = Index(skipped ? -1 - expert[i] : expert[i]), group = (first + i) * G / (N * parts);
    slot[i] = -1;
    if (e == E) continue;
    const Index row = 2 * (group / c.attributes.integer("load_groups", G));
    const bool fits = served[std::size_t(group * E + e)]++ < double(c.attributes.integer("capacity"));
    if (skipped) continue;
    if (fits || rule != Order::by_weight) load[row * E + e] += 1;  // experts choose: what is not kept was no choice
    if (!fits) continue;
    slot[i] = 0;  // kept
    counts[group * E + e] += 1;
    load[(row + 1) * E + e] += 1;
  }
  for (Index e = 0; e < E; ++e) filled[2 * e + 1] = kept_of(e);
  for (Index i = 0; i < N; ++i) {  // a slot's number counts the earlier kept entries of its expert
    if (slot[i] < 0) continue;
    slot[i] = filled[2 * Index(expert[i])];
    for (Index j = 0; j < i; ++j)
      if (expert[j] == expert[i] && slot[j] >= 0) slot[i] += 1;
  }
}
void slots(ReferenceCall& c) { gate(c, Order::by_token); }
void slots_by_choice(ReferenceCall& c) { gate(c, Order::by_choice); }
void slots_by_priority(ReferenceCall& c) { gate(c, Order::by_priority); }
void slots_by_weight(ReferenceCall& c) { gate(c, Order::by_weight); }

void top_k_dx(ReferenceCall& c) {  // dweight [T,K], expert, scores [B,S,E] [, dscores [L*E]]
  const auto &dweight = c.operands[0], &expert = c.operands[1], &p = c.operands[2];
  const Index T = expert.shape()[0], K = expert.shape()[1], E = p.shape()[2];
  const Index loads = T / c.attributes.integer("load_tokens", T);
  const bool normalized = c.attributes.integer("normalize", 0) != 0;
  c.length = double(E);
  std::vector<double> dp(static_cast<std::size_t>(E)), terms;
  for (Index t = 0; t < T; ++t) {
    for (Index e = 0; e < E; ++e) dp[std::size_t(e)] = c.has(3) ? c.operands[3][t * loads / T * E + e] : 0.0;
    double chosen = 0;
    for (Index k = 0; k < K; ++k) chosen += p[t * E + Index(expert[t * K + k])];
    for (Index k = 0; k < K; ++k)  // of weight j by the score of choice k
      for (Index j = 0; j < K; ++j) {
        const double own = p[t * E + Index(expert[t * K + j])];
        const double slope = normalized ? ((j == k ? 1 : 0) - own / chosen) / chosen : (j == k ? 1 : 0);
        dp[std::size_t(expert[t * K + k])] += dweight[t * K + j] * slope;
      }
    // The whole Jacobian: d p_f / d logit_e = p_f * ((e == f) - p_e)
    for (Index e = 0; e < E; ++e) {
      double sum = 0, size = 0;  // normalised weights' terms cancel out but for those of the chosen experts
      for (Index f = 0; f < E; ++f) {
        const double term = dp[std::size_t(f)] * p[t * E + f], slope = (e == f ? 1 : 0) - p[t * E + e];
        sum += term * slope;
        size += std::abs(term) * ((e == f ? 1 : 0) + p[t * E + e]);
      }
      c.results[0][t * E + e] = sum;
      terms.push_back(size);
    }
  }
  c.terms = {terms};
}

void dispatch(ReferenceCall& c) {  // x, expert, slot, filled
  const auto& x = c.operands[0];
  const Index D = x.shape()[2];
  for_entries(c, c.operands[1], c.operands[2], c.results[0].shape(), [&](Index t, Index, Index row) {
    for (Index d = 0; d < D && row >= 0; ++d) c.results[0][row * D + d] = x[t * D + d];
  });
}

void dispatch_dx(ReferenceCall& c) {  // dslots, expert, slot
  const auto& buffer = c.operands[0];
  const Index D = buffer.shape()[2];
  std::fill(c.results[0].values.begin(), c.results[0].values.end(), 0.0);
  for_entries(c, c.operands[1], c.operands[2], buffer.shape(), [&](Index t, Index, Index row) {
    for (Index d = 0; d < D && row >= 0; ++d) c.results[0][t * D + d] += buffer[row * D + d];
  });
}

void combine(ReferenceCall& c) {  // slots, expert, slot, weight, filled
  const auto &buffer = c.operands[0], &weight = c.operands[3];
  const Index D = buffer.shape()[2];
  std::fill(c.results[0].values.begin(), c.results[0].values.end(), 0.0);
  for_entries(c, c.operands[1], c.operands[2], buffer.shape(), [&](Index t, Index i, Index row) {
    for (Index d = 0; d < D && row >= 0; ++d) c.results[0][t * D + d] += weight[i] * buffer[row * D + d];
  });
}

void combine_dx(ReferenceCall& c) {  // dy, slots, expert, slot, weight, filled -> dslots, dweight
  const auto &dy = c.operands[0], &buffer = c.operands[1], &weight = c.operands[4];
  const Index D = buffer.shape()[2];
  c.length = double(D);
  for_entries(c, c.operands[2], c.operands[3], buffer.shape(), [&](Index t, Index i, Index row) {
    c.results[1][i] = 0;
    for (Index d = 0; d < D && row >= 0; ++d) {
      c.results[1][i] += dy[t * D + d] * buffer[row * D + d];
      c.results[0][row * D + d] = dy[t * D + d] * weight[i];
    }
  });
}

void aux_loss(ReferenceCall& c) {
  const auto &p = c.operands[0], &load = c.operands[1];
  const Index T = p.shape().rows(), E = p.shape().back();
  c.length = double(T);
  c.results[0][0] = c.results[0][1] = 0;
  const Index loads = load.shape()[0] / 2;
  for (Index i = 0; i < loads * E; ++i) {
    const Index l = i / E, e = i % E;
    const double fraction =
        load[2 * l * E + e] / double(c.attributes.integer("load_tokens")) / c.attributes.real("choices", 1);
    double mean = 0;
    for (Index t = l * T / loads; t < (l + 1) * T / loads; ++t) {
      mean += p[t * E + e] / double(c.attributes.integer("total_tokens"));
      c.results[0][1] -= p[t * E + e] * std::log(p[t * E + e]) / double(c.attributes.integer("total_tokens"));
    }
    c.results[0][0] += double(E) * fraction * mean;
  }
}

void aux_loss_dx(ReferenceCall& c) {
  const Index E = c.operands[0].shape()[1];
  for (Index i = 0; i < Index(c.results[0].values.size()); ++i)
    c.results[0][i] = c.attributes.real("coefficient") * double(E) * c.operands[0][i / E * 2 * E + i % E] /
                      (c.attributes.real("load_tokens") * c.attributes.real("choices", 1)) /
                      double(c.attributes.integer("total_tokens"));
}

void mean_load(ReferenceCall& c) {  // sum, load
  auto& sum = c.operands[0];
  const auto& load = c.operands[1];
  const Index E = load.shape()[1];
  c.length = double(E);
  double of_sum = 0, of_load = 0;
  for (Index i = 0; i < 2 * E; ++i) sum[i] += load[i];
  for (Index e = 0; e < E; ++e) {
    of_sum += sum[e];
    of_load += load[e];
  }
  for (Index i = 0; i < 2 * E; ++i) c.results[0][i] = sum[i] * of_load / of_sum;
}

// ---- all-to-alls of one rank: slot i of an expert is its row i (of this part and those before)

void all_to_all_counts(ReferenceCall& c) {
  const auto& filled = c.operands[0];
  for (Index e = 0; e < filled.shape()[0]; ++e) {
    c.results[0][2 * e] = c.has(1) ? c.operands[1][2 * e + 1] : 0;
    c.results[0][2 * e + 1] = c.results[0][2 * e] + filled[2 * e + 1] - filled[2 * e];
  }
}

void all_to_all_counts_windows(ReferenceCall& c) {
  const auto& filled = c.operands[0];
  for (Index e = 0; e < filled.shape()[0]; ++e) {
    c.results[0][2 * e] = c.has(2) ? c.operands[2][2 * e + 1] : 0;
    c.results[0][2 * e + 1] = c.results[0][2 * e] + filled[2 * e + 1] - filled[2 * e];
  }
  c.results[1][0] = std::max(1.0, c.operands[1][0]);  // there is at least one
}

// Counts the slots one by one.
void window_at(ReferenceCall& c, const DoubleTensor& slot, const DoubleTensor& filled, Index round) {
  const Index C = c.attributes.integer("slots");
  for (Index i = 0; i < Index(slot.values.size()); ++i) {
    c.results[0][i] = -1;
    for (Index at = 0; at < C; ++at)
      if (slot[i] == double(round * C + at)) c.results[0][i] = double(at);
  }
  for (Index i = 0; i < Index(filled.values.size()); ++i) {
    c.results[1][i] = 0;
    for (Index at = 0; at < C; ++at) c.results[1][i] += filled[i] > double(round * C + at);
  }
}

void first_window(ReferenceCall& c) {
  window_at(c, c.operands[1], c.operands[2], 0);
  const auto& filled = c.operands[2];
  Index windows = 1;
  for (Index e = 0; e < filled.shape()[0]; ++e)
    while (double(windows * c.attributes.integer("slots")) < filled[2 * e + 1]) ++windows;
  c.results[2][0] = double(windows);
}

void window(ReferenceCall& c) { window_at(c, c.operands[0], c.operands[1], Index(c.operands[2][0])); }

// The filled slots of each part become rows [rows[e,0], rows[e,1]), or the reverse.
void move_part(ReferenceCall& c, const DoubleTensor& filled, const DoubleTensor& rows, bool there) {
  const auto& in = c.operands[0];
  const Index D = in.shape()[2], in_rows = in.shape()[1], out_rows = c.results[0].shape()[1];
  for (Index e = 0; e < filled.shape()[0]; ++e)
    for (Index i = 0; i < Index(filled[2 * e + 1] - filled[2 * e]); ++i)
      for (Index d = 0; d < D; ++d) {
        const Index slot = Index(filled[2 * e]) + i, row = Index(rows[2 * e]) + i;
        c.results[0][(e * out_rows + (there ? row : slot)) * D + d] = in[(e * in_rows + (there ? slot : row)) * D + d];
      }
}
void move_rows(ReferenceCall& c, bool there) {
  for (std::size_t i = 1; i < c.operands.size(); i += 2) move_part(c, c.operands[i], c.operands[i + 1], there);
}
void all_to_all(ReferenceCall& c) { move_rows(c, true); }
void all_to_all_back(ReferenceCall& c) { move_rows(c, false); }

// ---- parts of filled slots

void split_filled(ReferenceCall& c) {  // expert, slot [, part before]
  const auto &expert = c.operands[0], &slot = c.operands[1];
  auto& part = c.results[0];
  for (Index e = 0; e < part.shape()[0]; ++e) part[2 * e] = part[2 * e + 1] = c.has(2) ? c.operands[2][2 * e + 1] : 0;
  for (Index i = 0; i < expert.shape().elements(); ++i)
    if (slot[i] >= 0) part[2 * Index(expert[i]) + 1] += 1;  // one slot per kept choice
}

void split_capacity(ReferenceCall& c) {
  const auto& whole = c.operands[0];
  const Index parts = c.attributes.integer("parts"), part = c.attributes.integer("part");
  for (Index e = 0; e < whole.shape()[0]; ++e) {
    // Filled slot k of n belongs to the last part p with p * n / parts <= k, rounded down; counted one by one.
    const Index n = Index(whole[2 * e + 1] - whole[2 * e]);
    Index before = 0, mine = 0;
    for (Index k = 0; k < n; ++k) {
      Index of = 0;
      while (of + 1 < parts && (of + 1) * n / parts <= k) ++of;
      before += of < part;
      mine += of == part;
    }
    c.results[0][2 * e] = whole[2 * e] + double(before);
    c.results[0][2 * e + 1] = c.results[0][2 * e] + double(mine);
  }
}

// The part in which rank 0 sends to another one. Without the attribute host, group g of the ranks is `g` groups away.
// With it, rank 0 comes first, then the rest of its host, then the others in parts of equal size, rounded down from the
// front.
Index part_of_peer(const ReferenceCall& c, Index peer) {
  const Index ranks = c.attributes.integer("ranks"), parts = c.attributes.integer("parts");
  if (!c.attributes.has("host")) return peer / (ranks / parts);
  const Index host = c.attributes.integer("host");
  if (peer == 0) return 0;
  if (peer < host) return 1;
  const Index near = host > 1 ? 2 : 1, tiles = parts - near;
  Index tile = 0;
  while ((ranks - host) * (tile + 1) / tiles <= peer - host) ++tile;
  return near + tile;
}

void split_peers(ReferenceCall& c) {
  const auto& whole = c.operands[0];
  const Index E = whole.shape()[0], ranks = c.attributes.integer("ranks"), part = c.attributes.integer("part");
  for (Index e = 0; e < E; ++e) {
    c.results[0][2 * e] = whole[2 * e];
    c.results[0][2 * e + 1] = part_of_peer(c, e / (E / ranks)) == part ? whole[2 * e + 1] : whole[2 * e];
  }
}

void capacity_rows(ReferenceCall& c) {
  const auto& whole = c.operands[0];
  const Index parts = c.attributes.integer("parts"), part = c.attributes.integer("part"), width = whole.shape()[1];
  for (Index e = 0; e < whole.shape()[0]; ++e) {
    // Row k of n from a source belongs to the last part p with p * n / parts <= k, rounded down; counted one by one.
    Index before = 0;
    std::vector<Index> mine(static_cast<std::size_t>(width), 0);
    for (Index s = 0; s + 1 < width; ++s) {
      const Index n = Index(whole[e * width + s + 1] - whole[e * width + s]);
      for (Index k = 0; k < n; ++k) {
        Index of = 0;
        while (of + 1 < parts && (of + 1) * n / parts <= k) ++of;
        before += of < part;
        mine[std::size_t(s) + 1] += of == part;
      }
    }
    c.results[0][e * width] = whole[e * width] + double(before);
    for (Index s = 1; s < width; ++s)
      c.results[0][e * width + s] = c.results[0][e * width + s - 1] + double(mine[std::size_t(s)]);
  }
}

void peer_rows(ReferenceCall& c) {  // of one rank: all rows are its own
  for (Index i = 0; i < c.results[0].shape().elements(); ++i) c.results[0][i] = c.operands[0][i];
}

void join_rows(ReferenceCall& c) {  // all rows count as the first source's: experts read only the first and last entry
  const Index width = c.results[0].shape()[1];
  for (Index e = 0; e < c.results[0].shape()[0]; ++e)
    for (Index s = 0; s < width; ++s)
      c.results[0][e * width + s] = s == 0 ? c.operands.front()[e * width] : c.operands.back()[(e + 1) * width - 1];
}

void sum(ReferenceCall& c) {
  c.length = double(c.operands.size());
  for (Index i = 0; i < Index(c.results[0].values.size()); ++i) {
    c.results[0][i] = 0;
    for (const DoubleTensor& part : c.operands) c.results[0][i] += part[i];
  }
}

void copy(ReferenceCall& c) { c.results[0].values = c.operands[0].values; }

void concat(ReferenceCall& c) {
  c.results[0].values.clear();
  for (const DoubleTensor& part : c.operands)
    c.results[0].values.insert(c.results[0].values.end(), part.values.begin(), part.values.end());
}

void place_columns(ReferenceCall& c) {  // a tile [E,C,D/n] and its filled slots
  const DoubleTensor &tile = c.operands[0], &filled = c.operands[1];
  const Index columns = tile.shape()[2], all = c.results[0].shape()[2], width = filled.shape()[1];
  const Index first = c.attributes.integer("part") * columns;
  for (Index e = 0; e < tile.shape()[0]; ++e)
    for (Index r = Index(filled[e * width]); r < Index(filled[(e + 1) * width - 1]); ++r)
      for (Index i = 0; i < columns; ++i) {
        const Index row = e * tile.shape()[1] + r;
        c.results[0][row * all + first + i] = tile[row * columns + i];
      }
}

void merge_slots(ReferenceCall& c) {
  const auto& shape = c.results[0].shape();
  for (std::size_t p = 0; p < c.operands.size(); p += 2) {
    const DoubleTensor &buffer = c.operands[p], &filled = c.operands[p + 1];
    for (Index e = 0; e < shape[0]; ++e) {
      const Index width = filled.shape()[1];
      const auto begin = Index(filled[e * width]), end = Index(filled[(e + 1) * width - 1]);
      for (Index i = (e * shape[1] + begin) * shape[2]; i < (e * shape[1] + end) * shape[2]; ++i)
        c.results[0][i] = buffer[i];
    }
  }
}

}  // namespace

void add_moe_references(std::map<std::string_view, Reference>& table) {
  table.insert({{"all_to_all", all_to_all},
                {"all_to_all_back", all_to_all_back},
                {"aux_loss", aux_loss},
                {"aux_loss_dx", aux_loss_dx},
                {"mean_load", mean_load},
                {"combine", combine},
                {"concat", concat},
                {"copy", copy},
                {"combine_dx", combine_dx},
                {"dispatch", dispatch},
                {"dispatch_dx", dispatch_dx},
                {"all_to_all_counts", all_to_all_counts},
                {"all_to_all_counts_windows", all_to_all_counts_windows},
                {"first_window", first_window},
                {"join_rows", join_rows},
                {"merge_slots", merge_slots},
                {"capacity_rows", capacity_rows},
                {"peer_rows", peer_rows},
                {"place_columns", place_columns},
                {"split_capacity", split_capacity},
                {"split_peers", split_peers},
                {"split_filled", split_filled},
                {"slots", slots},
                {"slots_by_choice", slots_by_choice},
                {"slots_by_priority", slots_by_priority},
                {"slots_by_weight", slots_by_weight},
                {"sum", sum},
                {"top_k", top_k},
                {"top_k_dx", top_k_dx},
                {"window", window}});
}

}  // namespace lancet::test
