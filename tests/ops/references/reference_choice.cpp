// The references of choices by sigmoid scores and of experts, of what balances them, and of the z-loss.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "ops/references/reference_ops.h"

namespace lancet::test {
namespace {

using Index = std::int64_t;

// Zhou et al., Expert Choice, section 3.2: S = softmax(X W), of which every expert sees all tokens.
void every_expert(ReferenceCall& c) {  // logits [B,S,E]
  const auto& logits = c.operands[0];
  const Index T = logits.shape().rows(), E = logits.shape()[2];
  c.length = double(E);
  for (Index t = 0; t < T; ++t) {
    double sum = 0;
    for (Index e = 0; e < E; ++e) sum += std::exp(logits[t * E + e]);
    for (Index e = 0; e < E; ++e) {
      c.results[0][t * E + e] = double(e);
      c.results[1][t * E + e] = c.results[2][t * E + e] = std::exp(logits[t * E + e]) / sum;
    }
  }
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// The experts that a token may choose: those of the groups whose two best experts have the largest sums (DeepSeek-V3,
// section 2.1.2; the public code's noaux_tc).
std::vector<bool> open_experts(const std::vector<double>& ranks, Index groups, Index open) {
  const auto size = ranks.size() / std::size_t(groups);
  std::vector<double> sums;
  for (std::size_t g = 0; g < std::size_t(groups); ++g) {
    std::vector<double> of_group(ranks.begin() + std::ptrdiff_t(g * size),
                                 ranks.begin() + std::ptrdiff_t((g + 1) * size));
    std::sort(of_group.rbegin(), of_group.rend());
    sums.push_back(of_group[0] + (size > 1 ? of_group[1] : 0));
  }
  std::vector<std::size_t> order(sums.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return sums[a] > sums[b]; });
  std::vector<bool> is_open(ranks.size());
  for (std::size_t n = 0; n < std::size_t(open); ++n)
    for (std::size_t i = 0; i < size; ++i) is_open[order[n] * size + i] = true;
  return is_open;
}

void sigmoid_top_k(ReferenceCall& c) {  // logits [B,S,E] [, bias [E]]
  const auto& logits = c.operands[0];
  const Index T = logits.shape().rows(), E = logits.shape()[2], K = c.attributes.integer("k");
  const Index groups = c.attributes.integer("expert_groups", 1), open = c.attributes.integer("top_groups", groups);
  c.length = double(E);
  for (Index t = 0; t < T; ++t) {
    std::vector<double> s, ranks;
    for (Index e = 0; e < E; ++e) {
      s.push_back(sigmoid(logits[t * E + e]));
      ranks.push_back(s.back() + (c.has(1) ? c.operands[1][e] : 0));
    }
    const std::vector<bool> is_open = open_experts(ranks, groups, open);
    std::vector<Index> order;
    for (Index e = 0; e < E; ++e)
      if (is_open[std::size_t(e)]) order.push_back(e);
    std::stable_sort(order.begin(), order.end(),
                     [&](Index a, Index b) { return ranks[std::size_t(a)] > ranks[std::size_t(b)]; });
    double chosen = 0;
    for (Index k = 0; k < K; ++k) chosen += s[std::size_t(order[std::size_t(k)])];
    const bool normalized = c.attributes.integer("normalize", 0) != 0;
    for (Index k = 0; k < K; ++k) {
      const Index e = order[std::size_t(k)];
      c.results[0][t * K + k] = double(e);
      c.results[1][t * K + k] = c.attributes.real("scale", 1) * s[std::size_t(e)] / (normalized ? chosen : 1);
    }
    for (Index e = 0; e < E; ++e)
      c.results[2][t * E + e] = s[std::size_t(e)] / std::accumulate(s.begin(), s.end(), 0.0);
  }
}

void sigmoid_top_k_dx(ReferenceCall& c) {  // dweight [T,K], expert, logits [B,S,E] [, dscores [L*E]]
  const auto &dweight = c.operands[0], &expert = c.operands[1], &logits = c.operands[2];
  const Index T = expert.shape()[0], K = expert.shape()[1], E = logits.shape()[2];
  const Index loads = T / c.attributes.integer("load_tokens", T);
  const bool normalized = c.attributes.integer("normalize", 0) != 0;
  const double scale = c.attributes.real("scale", 1);
  c.length = double(E);
  std::vector<double> terms;
  for (Index t = 0; t < T; ++t) {
    std::vector<double> s, ds(static_cast<std::size_t>(E)), size(static_cast<std::size_t>(E));
    for (Index e = 0; e < E; ++e) s.push_back(sigmoid(logits[t * E + e]));
    const double all = std::accumulate(s.begin(), s.end(), 0.0);
    const auto add = [&](Index e, double term) { ds[std::size_t(e)] += term, size[std::size_t(e)] += std::abs(term); };
    for (Index e = 0; e < E && c.has(3); ++e)  // of score f = s_f / all by s_e
      for (Index f = 0; f < E; ++f) {
        const double shared = c.operands[3][t * loads / T * E + f];
        if (e == f) add(e, shared / all);
        add(e, -shared * s[std::size_t(f)] / (all * all));
      }
    double chosen = 0;
    for (Index k = 0; k < K; ++k) chosen += s[std::size_t(expert[t * K + k])];
    for (Index k = 0; k < K; ++k)  // of weight j by the score of choice k
      for (Index j = 0; j < K; ++j) {
        const Index e = Index(expert[t * K + k]);
        const double dw = scale * dweight[t * K + j];
        if (j == k) add(e, dw / (normalized ? chosen : 1));
        if (normalized) add(e, -dw * s[std::size_t(expert[t * K + j])] / (chosen * chosen));
      }
    for (Index e = 0; e < E; ++e) {
      const double slope = s[std::size_t(e)] * (1 - s[std::size_t(e)]);
      c.results[0][t * E + e] = ds[std::size_t(e)] * slope;
      terms.push_back(size[std::size_t(e)] * slope);
    }
  }
  c.terms = {terms};
}

void choice_counts(ReferenceCall& c) {  // expert [, accumulator]
  for (Index e = 0; e < c.results[0].shape()[0]; ++e) {
    c.results[0][e] = c.has(1) ? c.operands[1][e] : 0;
    for (const double chosen : c.operands[0].values) c.results[0][e] += chosen == double(e);
  }
}

// Wang et al., algorithm 1: b_i += u * sign(mean load - load_i).
void balance_bias(ReferenceCall& c) {  // bias, counts, schedule
  const auto& counts = c.operands[1];
  const double mean = std::accumulate(counts.values.begin(), counts.values.end(), 0.0) / double(counts.values.size());
  for (Index e = 0; e < counts.shape()[0]; ++e) {
    const double below = mean - counts[e];
    c.operands[0][e] += c.attributes.real("rate") * (below > 0 ? 1 : below < 0 ? -1 : 0);
  }
}

// Zoph et al., ST-MoE, equation 5.
double log_of_sum(const DoubleTensor& logits, Index t) {
  const Index E = logits.shape()[2];
  double sum = 0;
  for (Index e = 0; e < E; ++e) sum += std::exp(logits[t * E + e]);
  return std::log(sum);
}

void z_loss(ReferenceCall& c) {  // logits [B,S,E]
  const auto& logits = c.operands[0];
  c.length = double(logits.shape().rows());
  c.results[0][0] = 0;
  for (Index t = 0; t < logits.shape().rows(); ++t)
    c.results[0][0] += std::pow(log_of_sum(logits, t), 2) / double(c.attributes.integer("total_tokens"));
}

void z_loss_dx(ReferenceCall& c) {  // logits [B,S,E]
  const auto& logits = c.operands[0];
  const Index E = logits.shape()[2];
  c.length = double(E);
  for (Index i = 0; i < logits.shape().elements(); ++i) {
    const double z = log_of_sum(logits, i / E);
    c.results[0][i] = c.attributes.real("coefficient") * 2 * z * std::exp(logits[i] - z) /
                      double(c.attributes.integer("total_tokens"));
  }
}

}  // namespace

void add_choice_references(std::map<std::string_view, Reference>& table) {
  table.insert({{"balance_bias", balance_bias},
                {"choice_counts", choice_counts},
                {"every_expert", every_expert},
                {"sigmoid_top_k", sigmoid_top_k},
                {"sigmoid_top_k_dx", sigmoid_top_k_dx},
                {"z_loss", z_loss},
                {"z_loss_dx", z_loss_dx}});
}

}  // namespace lancet::test
