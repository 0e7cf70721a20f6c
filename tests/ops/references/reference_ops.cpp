#include "ops/references/reference_ops.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <numeric>

#include "lancet/base/rounding.h"

namespace lancet::test {

void add_moe_references(std::map<std::string_view, Reference>& table);     // reference_moe.cpp
void add_choice_references(std::map<std::string_view, Reference>& table);  // reference_choice.cpp
void add_decode_references(std::map<std::string_view, Reference>& table);  // reference_decode.cpp
void add_rotate_references(std::map<std::string_view, Reference>& table);  // reference_rotate.cpp
void add_draw_references(std::map<std::string_view, Reference>& table);    // reference_draws.cpp
void add_expert_references(std::map<std::string_view, Reference>& table);  // reference_experts.cpp

namespace {

using Index = std::int64_t;

Index rows_of(const DoubleTensor& t) { return t.shape().rows(); }
Index back_of(const DoubleTensor& t) { return t.shape().back(); }

// out[m,n] = start + sum over k of a(m,k) * b(n,k)
template <class A, class B, class Start>
void product(DoubleTensor& out, Index M, Index N, Index K, A a, B b, Start start) {
  for (Index m = 0; m < M; ++m)
    for (Index n = 0; n < N; ++n) {
      double sum = start(m, n);
      for (Index k = 0; k < K; ++k) sum += a(m, k) * b(n, k);
      out[m * N + n] = sum;
    }
}

void add(ReferenceCall& c) {
  for (Index i = 0; i < Index(c.results[0].values.size()); ++i) c.results[0][i] = c.operands[0][i] + c.operands[1][i];
}

// ---- products

void linear(ReferenceCall& c) {  // x [R,K], w [N,K], b [N]; the router is the same without b
  const auto &x = c.operands[0], &w = c.operands[1];
  const Index N = w.shape()[0], K = w.shape()[1];
  c.length = double(K);
  product(
      c.results[0], rows_of(x), N, K, [&](Index m, Index k) { return x[m * K + k]; },
      [&](Index n, Index k) { return w[n * K + k]; },
      [&](Index, Index n) { return c.has(2) ? c.operands[2][n] : 0.0; });
}

void linear_dx(ReferenceCall& c) {  // dy [R,N], w [N,K]
  const auto &dy = c.operands[0], &w = c.operands[1];
  const Index N = w.shape()[0], K = w.shape()[1];
  c.length = double(N);
  product(
      c.results[0], rows_of(dy), K, N, [&](Index m, Index n) { return dy[m * N + n]; },
      [&](Index k, Index n) { return w[n * K + k]; }, [](Index, Index) { return 0.0; });
}

void linear_dw(ReferenceCall& c) {  // dy [R,N], x [R,K]; dw [N,K], db [N]
  const auto &dy = c.operands[0], &x = c.operands[1];
  const Index R = rows_of(dy), N = back_of(dy), K = back_of(x);
  c.length = double(R);
  product(
      c.results[0], N, K, R, [&](Index n, Index r) { return dy[r * N + n]; },
      [&](Index k, Index r) { return x[r * K + k]; },
      [&](Index n, Index k) { return c.has(2) ? c.operands[2][n * K + k] : 0.0; });
  if (c.results.size() < 2) return;
  for (Index n = 0; n < N; ++n) {
    c.results[1][n] = c.has(3) ? c.operands[3][n] : 0.0;
    for (Index r = 0; r < R; ++r) c.results[1][n] += dy[r * N + n];
  }
}

// ---- layer norm

void norm_rows(ReferenceCall& c, const DoubleTensor& x, const DoubleTensor& gamma, const DoubleTensor& beta,
               DoubleTensor& y, DoubleTensor& stats) {
  const Index D = back_of(x);
  c.length = double(D);
  for (Index r = 0; r < rows_of(x); ++r) {
    double mean = 0, variance = 0;
    for (Index d = 0; d < D; ++d) mean += x[r * D + d] / double(D);
    for (Index d = 0; d < D; ++d) variance += std::pow(x[r * D + d] - mean, 2) / double(D);
    const double scale = 1 / std::sqrt(variance + c.attributes.real("eps"));
    for (Index d = 0; d < D; ++d) y[r * D + d] = (x[r * D + d] - mean) * scale * gamma[d] + beta[d];
    stats[2 * r] = mean;
    stats[2 * r + 1] = scale;
  }
}

void layer_norm(ReferenceCall& c) {
  norm_rows(c, c.operands[0], c.operands[1], c.operands[2], c.results[0], c.results[1]);
}

// The nearest bf16 (8 bits of mantissa).
double round_to_bf16(double x) {
  int exponent = 0;
  const double mantissa = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(mantissa, 8)), exponent - 8);
}

// The norm is of the sum as it is stored, since backward has only that.
void add_layer_norm(ReferenceCall& c) {
  add(c);
  if (c.results[0].type.dtype == DType::bf16)
    for (double& x : c.results[0].values) x = round_to_bf16(x);
  norm_rows(c, c.results[0], c.operands[2], c.operands[3], c.results[1], c.results[2]);
}

void layer_norm_dx(ReferenceCall& c) {  // dy, x, gamma, stats [, gradient of the sum]
  const auto &dy = c.operands[0], &x = c.operands[1], &gamma = c.operands[2], &stats = c.operands[3];
  const Index D = back_of(x);
  c.length = double(D);
  for (Index r = 0; r < rows_of(x); ++r) {
    const double mean = stats[2 * r], scale = stats[2 * r + 1];
    double sum = 0, dot = 0;
    auto normal = [&](Index d) { return (x[r * D + d] - mean) * scale; };
    for (Index d = 0; d < D; ++d) {
      sum += dy[r * D + d] * gamma[d];
      dot += dy[r * D + d] * gamma[d] * normal(d);
    }
    for (Index d = 0; d < D; ++d)
      c.results[0][r * D + d] = scale * (dy[r * D + d] * gamma[d] - sum / double(D) - normal(d) * dot / double(D)) +
                                (c.has(4) ? c.operands[4][r * D + d] : 0.0);
  }
}

void layer_norm_dw(ReferenceCall& c) {  // dy, x, stats [, accumulators of dgamma, dbeta]
  const auto &dy = c.operands[0], &x = c.operands[1], &stats = c.operands[2];
  const Index D = back_of(x);
  c.length = double(rows_of(x));
  for (Index d = 0; d < D; ++d) {
    double dgamma = c.has(3) ? c.operands[3][d] : 0.0, dbeta = c.has(4) ? c.operands[4][d] : 0.0;
    for (Index r = 0; r < rows_of(x); ++r) {
      dgamma += dy[r * D + d] * (x[r * D + d] - stats[2 * r]) * stats[2 * r + 1];
      dbeta += dy[r * D + d];
    }
    c.results[0][d] = dgamma;
    c.results[1][d] = dbeta;
  }
}

void rms_rows(ReferenceCall& c, const DoubleTensor& x, const DoubleTensor& gamma, DoubleTensor& y,
              DoubleTensor& stats) {
  const Index D = back_of(x);
  c.length = double(D);
  for (Index r = 0; r < rows_of(x); ++r) {
    double square = 0;
    for (Index d = 0; d < D; ++d) square += x[r * D + d] * x[r * D + d] / double(D);
    stats[r] = 1 / std::sqrt(square + c.attributes.real("eps"));
    for (Index d = 0; d < D; ++d) {
      const double normalized = x[r * D + d] * stats[r];
      y[r * D + d] = (x.type.dtype == DType::bf16 ? round_to_bf16(normalized) : normalized) * gamma[d];
    }
  }
}

void rms_norm(ReferenceCall& c) { rms_rows(c, c.operands[0], c.operands[1], c.results[0], c.results[1]); }

void add_rms_norm(ReferenceCall& c) {
  add(c);
  if (c.results[0].type.dtype == DType::bf16)
    for (double& x : c.results[0].values) x = round_to_bf16(x);
  rms_rows(c, c.results[0], c.operands[2], c.results[1], c.results[2]);
}

void rms_norm_dx(ReferenceCall& c) {  // dy, x, gamma, stats [, gradient of the sum]
  const auto &dy = c.operands[0], &x = c.operands[1], &gamma = c.operands[2], &stats = c.operands[3];
  const Index D = back_of(x);
  c.length = double(D);
  for (Index r = 0; r < rows_of(x); ++r) {
    double dot = 0;
    for (Index d = 0; d < D; ++d) dot += dy[r * D + d] * gamma[d] * x[r * D + d];
    for (Index d = 0; d < D; ++d)
      c.results[0][r * D + d] = stats[r] * dy[r * D + d] * gamma[d] -
                                std::pow(stats[r], 3) * x[r * D + d] * dot / double(D) +
                                (c.has(4) ? c.operands[4][r * D + d] : 0.0);
  }
}

void rms_norm_dw(ReferenceCall& c) {  // dy, x, stats [, accumulator of dgamma]
  const auto &dy = c.operands[0], &x = c.operands[1], &stats = c.operands[2];
  const Index D = back_of(x);
  c.length = double(rows_of(x));
  for (Index d = 0; d < D; ++d) {
    double& dgamma = c.results[0][d] = c.has(3) ? c.operands[3][d] : 0.0;
    for (Index r = 0; r < rows_of(x); ++r) dgamma += dy[r * D + d] * x[r * D + d] * stats[r];
  }
}

// ---- attention

// Queries of qkv, keys and values of `all`, whose last positions are those of the queries.
struct Heads {
  Index B, S, T, G, K, H, d;  // batch, queries, keys, heads of queries in a group, of keys, of queries, head size
  explicit Heads(const DoubleTensor& qkv, const DoubleTensor& all, const ir::Attributes& attributes)
      : B(qkv.shape()[0]),
        S(qkv.shape()[1]),
        T(all.shape()[1]),
        G(attributes.integer("group", 1)),
        K(attributes.integer("heads")),
        H(G * K),
        d(qkv.shape()[2] / (H + 2 * K)) {}
  // Element i of the q (which = 0) of head h, or of the k (1) or v (2) that it reads.
  Index packed(int which, Index b, Index s, Index h, Index i) const {
    const Index head = which == 0 ? h : H + (which - 1) * K + h / G;
    return ((b * (which == 0 ? S : T) + s) * (H + 2 * K) + head) * d + i;
  }
  // Of the gradients of keys and values, in a sum of all and in dqkv; negative if dqkv has none.
  Index summed(int which, Index b, Index t, Index h, Index i) const {
    return ((b * T + t) * 2 * K + (which - 1) * K + h / G) * d + i;
  }
  Index own(int which, Index b, Index t, Index h, Index i) const {
    return t < T - S ? -1 : ((b * S + t - (T - S)) * (H + 2 * K) + H + (which - 1) * K + h / G) * d + i;
  }
  Index plain(Index b, Index s, Index h, Index i) const { return (b * S + s) * H * d + h * d + i; }
  double score(const DoubleTensor& qkv, const DoubleTensor& all, Index b, Index h, Index s, Index t) const {
    double sum = 0;
    for (Index i = 0; i < d; ++i) sum += qkv[packed(0, b, s, h, i)] * all[packed(1, b, t, h, i)];
    return sum / std::sqrt(double(d));
  }
  double score_terms(const DoubleTensor& qkv, const DoubleTensor& all, Index b, Index h, Index s, Index t) const {
    double sum = 0;
    for (Index i = 0; i < d; ++i) sum += std::abs(qkv[packed(0, b, s, h, i)] * all[packed(1, b, t, h, i)]);
    return sum / std::sqrt(double(d));
  }
};

template <class F>
void for_queries(const Heads& n, F f) {
  for (Index b = 0; b < n.B; ++b)
    for (Index h = 0; h < n.H; ++h)
      for (Index s = 0; s < n.S; ++s) f(b, h, s);
}

void attention(ReferenceCall& c) {
  const auto &qkv = c.operands[0], &all = c.operands[c.has(1) ? 1 : 0];
  const Heads n(qkv, all, c.attributes);
  c.length = double(n.T + n.d);
  // The error of lse: a score's, in units of its products' size, and that of a GPU's fast logarithm, which is absolute.
  c.terms = {std::vector<double>(c.results[0].values.size(), 0.0),
             std::vector<double>(c.results[1].values.size(), 1.0)};
  for_queries(n, [&](Index b, Index h, Index s) {
    std::vector<double> p;
    double total = 0, most_terms = 0;
    const Index last = n.T - n.S + s;
    for (Index t = 0; t <= last; ++t) {
      total += p.emplace_back(std::exp(n.score(qkv, all, b, h, s, t)));
      most_terms = std::max(most_terms, n.score_terms(qkv, all, b, h, s, t));
    }
    c.terms[1][std::size_t((b * n.H + h) * n.S + s)] += most_terms;
    for (Index i = 0; i < n.d; ++i) {
      double sum = 0;
      for (Index t = 0; t <= last; ++t) {
        const double term = p[std::size_t(t)] / total * all[n.packed(2, b, t, h, i)];
        sum += term;
        c.terms[0][std::size_t(n.plain(b, s, h, i))] += std::abs(term);
      }
      c.results[0][n.plain(b, s, h, i)] = sum;
    }
    c.results[1][(b * n.H + h) * n.S + s] = std::log(total);
  });
}

void attention_dx(ReferenceCall& c) {  // dout, qkv, out, lse [, all [, later]]
  const auto &dout = c.operands[0], &qkv = c.operands[1], &out = c.operands[2], &lse = c.operands[3];
  const auto& all = c.operands[c.has(4) ? 4 : 1];
  const Heads n(qkv, all, c.attributes);
  c.length = double(n.T + n.d);
  c.terms.clear();
  for (DoubleTensor& result : c.results) {
    std::fill(result.values.begin(), result.values.end(), 0.0);
    c.terms.push_back(result.values);
  }
  auto add_term = [&](std::size_t result, Index i, double factor, double size, double x) {
    c.results[result][i] += factor * x;
    c.terms[result][std::size_t(i)] += size * std::abs(x);
  };
  // To the gradient of a key or a value.
  auto add_key = [&](int which, Index b, Index t, Index h, Index i, double factor, double size, double x) {
    if (const Index own = n.own(which, b, t, h, i); own >= 0) add_term(0, own, factor, size, x);
    if (c.results.size() > 1) add_term(1, n.summed(which, b, t, h, i), factor, size, x);
  };
  for (Index b = 0; c.has(5) && b < n.B; ++b)
    for (Index t = 0; t < n.T; ++t)
      for (Index h = 0; h < n.H; h += n.G)
        for (Index i = 0; i < n.d; ++i)
          for (int which : {1, 2}) add_key(which, b, t, h, i, 1, 1, c.operands[5][n.summed(which, b, t, h, i)]);
  for_queries(n, [&](Index b, Index h, Index s) {
    double delta = 0, delta_size = 0;
    for (Index i = 0; i < n.d; ++i) {
      const double term = dout[n.plain(b, s, h, i)] * out[n.plain(b, s, h, i)];
      delta += term;
      delta_size += std::abs(term);
    }
    for (Index t = 0; t <= n.T - n.S + s; ++t) {
      const double p = std::exp(n.score(qkv, all, b, h, s, t) - lse[(b * n.H + h) * n.S + s]);
      double dp = 0, dp_size = 0;
      for (Index i = 0; i < n.d; ++i) {
        const double term = dout[n.plain(b, s, h, i)] * all[n.packed(2, b, t, h, i)];
        dp += term;
        dp_size += std::abs(term);
      }
      const double root = std::sqrt(double(n.d)), ds = p * (dp - delta) / root,
                   size = p * (dp_size + delta_size) / root;
      for (Index i = 0; i < n.d; ++i) {
        add_term(0, n.packed(0, b, s, h, i), ds, size, all[n.packed(1, b, t, h, i)]);
        add_key(1, b, t, h, i, ds, size, qkv[n.packed(0, b, s, h, i)]);
        add_key(2, b, t, h, i, p, p, dout[n.plain(b, s, h, i)]);
      }
    }
  });
  // Shares and gradients of scores are rounded to bf16, the sums of their products are not.
  if (c.results.size() > 1 && qkv.type.dtype == DType::bf16)
    for (double& term : c.terms[1]) term *= 1 + 0x1p-8 / ((4 + 2 * std::sqrt(c.length)) * 0x1p-23);
}

// ---- embedding and loss

// The row of a token in a share of `rows` rows, or -1.
Index row_of(const ReferenceCall& c, double token, Index rows) {
  const Index row = Index(token) - c.place * rows;
  return row >= 0 && row < rows ? row : -1;
}

void embedding(ReferenceCall& c) {
  const auto &tokens = c.operands[0], &wte = c.operands[1];
  const Index S = tokens.shape()[1], D = back_of(wte), before = c.attributes.integer("before", 0);
  for (Index t = 0; t < tokens.shape().elements(); ++t) {
    const Index row = row_of(c, tokens[t], wte.shape()[0]);
    for (Index d = 0; d < D; ++d)
      c.results[0][t * D + d] =
          (row < 0 ? 0 : wte[row * D + d]) + (c.has(2) ? c.operands[2][(before + t % S) * D + d] : 0.0);
  }
}

// dw[row(t)] += dx[t] over the tokens t with a row of at least 0
template <class Row>
void scatter(ReferenceCall& c, std::size_t accumulator, Row row) {
  const auto& dx = c.operands[0];
  const Index D = back_of(dx);
  c.length = double(rows_of(dx));
  for (Index i = 0; i < Index(c.results[0].values.size()); ++i)
    c.results[0][i] = c.has(accumulator) ? c.operands[accumulator][i] : 0.0;
  for (Index t = 0; t < rows_of(dx); ++t)
    for (Index d = 0; d < D && row(t) >= 0; ++d) c.results[0][row(t) * D + d] += dx[t * D + d];
}
void embedding_dw(ReferenceCall& c) {
  scatter(c, 2, [&](Index t) { return row_of(c, c.operands[1][t], c.results[0].shape()[0]); });
}
void position_dw(ReferenceCall& c) {
  scatter(c, 1, [S = c.operands[0].shape()[1]](Index t) { return t % S; });
}

void cross_entropy(ReferenceCall& c) {  // the gradient too, if it is requested
  const auto &logits = c.operands[0], &targets = c.operands[1];
  const Index V = back_of(logits), vocabulary = c.attributes.integer("vocabulary");
  const double total = double(c.attributes.integer("total_tokens"));
  c.length = double(V + rows_of(logits));
  c.results[0][0] = 0;
  for (Index t = 0; t < rows_of(logits); ++t) {
    double sum = 0;
    for (Index v = 0; v < vocabulary; ++v) sum += std::exp(logits[t * V + v]);
    const Index target = Index(targets[t]);
    c.results[0][0] += (std::log(sum) - logits[t * V + target]) / total;
    if (c.results.size() < 2) continue;
    for (Index v = 0; v < V; ++v)
      c.results[1][t * V + v] =
          v < vocabulary ? (std::exp(logits[t * V + v]) / sum - (v == target ? 1 : 0)) / total : 0;
  }
}

// Where the numbers of a token and block of columns are in stats [blocks,B,S,2].
Index stat_at(const DoubleTensor& stats, Index block, Index t) {
  return (block * stats.shape()[1] * stats.shape()[2] + t) * 2;
}

// Calls body(stat, t, v, column) for all logits that are no padding: v is their place among c's logits, column that in
// the vocabulary.
template <class Body>
void for_each_logit(const ReferenceCall& c, const DoubleTensor& logits, const DoubleTensor& stats, const Body& body) {
  const Index V = back_of(logits), width = V / stats.shape()[0];
  for (Index t = 0; t < rows_of(logits); ++t)
    for (Index v = 0; v < V; ++v)
      if (const Index column = c.place * V + v; column < c.attributes.integer("vocabulary"))
        body(stat_at(stats, v / width, t), t, t * V + v, column);
}

void logit_stats(ReferenceCall& c) {
  const auto &logits = c.operands[0], &targets = c.operands[1];
  auto& stats = c.results[0];
  c.length = double(back_of(logits));
  std::fill(stats.values.begin(), stats.values.end(), 0.0);
  for_each_logit(c, logits, stats, [&](Index stat, Index t, Index v, Index column) {
    stats[stat] += std::exp(logits[v]);
    if (column == Index(targets[t])) stats[stat + 1] = logits[v];
  });
  for (std::size_t i = 0; i < stats.values.size(); i += 2) stats.values[i] = std::log(stats.values[i]);
}

void logit_stats_dx(ReferenceCall& c) {
  const auto &dstats = c.operands[0], &logits = c.operands[1], &targets = c.operands[2], &stats = c.operands[3];
  auto& dx = c.results[0];
  std::fill(dx.values.begin(), dx.values.end(), 0.0);
  for_each_logit(c, logits, stats, [&](Index stat, Index t, Index v, Index column) {
    dx[v] = dstats[stat] * std::exp(logits[v] - stats[stat]) + (column == Index(targets[t]) ? dstats[stat + 1] : 0);
  });
}

void loss_of_stats(ReferenceCall& c) {
  const auto &stats = c.operands[0], &targets = c.operands[1];
  const double total = double(c.attributes.integer("total_tokens"));
  const Index blocks = stats.shape()[0];
  c.length = double(targets.values.size());
  c.results[0][0] = 0;
  for (Index t = 0; t < Index(targets.values.size()); ++t) {
    double sum = 0, logit = 0;
    for (Index b = 0; b < blocks; ++b) {
      sum += std::exp(stats[stat_at(stats, b, t)]);
      logit += stats[stat_at(stats, b, t) + 1];
    }
    const bool counts = targets[t] >= 0;
    if (counts) c.results[0][0] += (std::log(sum) - logit) / total;
    for (Index b = 0; b < blocks; ++b) {
      const Index at = stat_at(stats, b, t);
      c.results[1][at] = counts ? std::exp(stats[at]) / sum / total : 0;
      c.results[1][at + 1] = counts ? -1 / total : 0;
    }
  }
}

// ---- updates

// Rounds up if the part of x beyond the next bf16 towards zero and 16 random bits add to 1 or more.
double round_stochastically(double x, std::uint32_t bits) {
  const double step = std::ldexp(1.0, std::ilogb(x) - 7), low = std::trunc(x / step) * step;
  const double part = std::floor(std::abs(x - low) / step * 65536);
  return part + (bits >> 16) >= 65536 ? low + std::copysign(step, x) : low;
}

// The exact weights: the master copy if there is one; w follows. A shard of all of w ends in padding that stays.
template <class F>
void update_weights(ReferenceCall& c, std::size_t master, F f) {
  DoubleTensor& w = c.has(master) ? c.operands[master] : c.operands[0];
  const Index n = Index(c.operands[0].values.size());
  for (Index i = 0; i < n; ++i) w[i] = f(i, w[i]);
  std::copy_n(w.values.begin(), n, c.operands[0].values.begin());
  if (!c.attributes.has("rounding_seed")) return;
  const RoundingBits bits(std::uint32_t(c.attributes.integer("rounding_seed")),
                          std::uint32_t(c.operands[master - 1][3]));
  for (Index i = 0; i < Index(w.values.size()); ++i) w[i] = round_stochastically(w[i], bits(i));
}

double scale_of(const DoubleTensor& schedule) { return schedule.values.size() > 4 ? schedule[4] : 1; }

void adamw(ReferenceCall& c) {  // w, m, v, gradient, schedule [, master]
  auto &m = c.operands[1], &v = c.operands[2];
  const auto &gradient = c.operands[3], &schedule = c.operands[4];
  const double beta1 = c.attributes.real("beta1"), beta2 = c.attributes.real("beta2"), eps = c.attributes.real("eps"),
               decay = c.attributes.real("weight_decay");
  update_weights(c, 5, [&](Index i, double w) {
    const double g = gradient[i] * scale_of(schedule);
    m[i] = beta1 * m[i] + (1 - beta1) * g;
    v[i] = beta2 * v[i] + (1 - beta2) * g * g;
    return w - schedule[0] * (m[i] / schedule[1] / (std::sqrt(v[i] / schedule[2]) + eps) + decay * w);
  });
}

void sgd(ReferenceCall& c) {  // w, v, gradient, schedule [, master]
  auto& v = c.operands[1];
  update_weights(c, 4, [&](Index i, double w) {
    v[i] = c.attributes.real("momentum") * v[i] +
           (c.operands[2][i] * scale_of(c.operands[3]) + c.attributes.real("weight_decay") * w);
    return w - c.operands[3][0] * v[i];
  });
}

void squared_norm(ReferenceCall& c) {
  c.results[0][0] = 0;
  for (const DoubleTensor& g : c.operands)
    for (double x : g.values) c.results[0][0] += x * x;
}

void clip_scale(ReferenceCall& c) {
  double sum = 0;
  for (const DoubleTensor& s : c.operands) sum += s[0];
  const double most = c.attributes.real("max_norm");
  c.results[0][0] = std::sqrt(sum);
  c.results[0][1] = most > 0 ? std::min(1.0, most / std::sqrt(sum)) : 1.0;
}

void clipped_schedule(ReferenceCall& c) {
  for (Index i = 0; i < 4; ++i) c.results[0][i] = c.operands[0][i];
  c.results[0][4] = c.operands[1][1];
}

void zero(ReferenceCall& c) { std::fill(c.operands[0].values.begin(), c.operands[0].values.end(), 0.0); }

void zeros(ReferenceCall& c) { std::fill(c.results[0].values.begin(), c.results[0].values.end(), 0.0); }

void all_reduce(ReferenceCall& c) {  // of one rank
  for (std::size_t i = 0; i < c.operands.size(); ++i) c.results[i].values = c.operands[i].values;
}

// Of one rank: the tensor with its padding, or a range of it.
void reduce_scatter_flat(ReferenceCall& c) {
  const bool rounded = c.attributes.has("message");
  const Index begin = c.attributes.integer("begin", 0);
  for (std::size_t i = 0; i < c.operands.size(); ++i)
    for (Index k = 0; k < Index(c.results[i].values.size()); ++k) {
      const bool padding = begin + k >= Index(c.operands[i].values.size());
      const double x = padding ? 0 : c.operands[i][begin + k];
      c.results[i][k] = rounded ? double(to_f32(from_f32<bf16>(float(x)))) : x;
    }
}

void of_one_rank(ReferenceCall& c) {
  for (std::size_t i = 0; i < c.results.size(); ++i) c.results[i].values = c.operands[i].values;
}

// Calls copy(index in the shard, index in the whole) for each element of a shard of dimension `axis` of `blocks`.
template <class Copy>
void for_each_of_shard(const ir::Attributes& attributes, const Shape& whole, const Shape& shard, Index number,
                       const Copy& copy) {
  const auto axis = int(attributes.integer("axis"));
  const ir::Blocks blocks = attributes.blocks("blocks");
  const Index shards = attributes.integer("shards");
  Index outer = 1, inner = 1;
  for (int i = 0; i < axis; ++i) outer *= whole[i];
  for (int i = axis + 1; i < whole.rank(); ++i) inner *= whole[i];
  std::vector<Index> from;  // of each index of the shard: that of the whole
  for (Index b = 0, begin = 0; b < blocks.count(); ++b) {
    const Index length = whole[axis] / blocks.units * blocks.width(b);
    for (Index i = length * number / shards; i < length * (number + 1) / shards; ++i) from.push_back(begin + i);
    begin += length;
  }
  for (Index o = 0; o < outer; ++o)
    for (Index at = 0; at < shard[axis]; ++at)
      for (Index i = 0; i < inner; ++i)
        copy((o * shard[axis] + at) * inner + i, (o * whole[axis] + from[std::size_t(at)]) * inner + i);
}

// Shard 0, or that of the window.
void take_shard(ReferenceCall& c) {
  for_each_of_shard(c.attributes, c.operands[0].shape(), c.results[0].shape(), c.attributes.integer("part", 0),
                    [&](Index to, Index from) { c.results[0][to] = c.operands[0][from]; });
}

void join_windows(ReferenceCall& c) {
  for (std::size_t w = 0; w < c.operands.size(); ++w)
    for_each_of_shard(c.attributes, c.results[0].shape(), c.operands[w].shape(), Index(w),
                      [&](Index from, Index to) { c.results[0][to] = c.operands[w][from]; });
}

// A rank alone sends to no neighbour, and receives zeros.
void of_no_neighbour(ReferenceCall& c) {
  for (auto& result : c.results) std::fill(result.values.begin(), result.values.end(), 0.0);
}

std::map<std::string_view, Reference> make_references() {
  std::map<std::string_view, Reference> table{{"adamw", adamw},
                                              {"add", add},
                                              {"add_to", add},
                                              {"add_layer_norm", add_layer_norm},
                                              {"add_rms_norm", add_rms_norm},
                                              {"rms_norm", rms_norm},
                                              {"rms_norm_dw", rms_norm_dw},
                                              {"rms_norm_dx", rms_norm_dx},
                                              {"all_gather_flat", all_reduce},
                                              {"all_gather", of_one_rank},
                                              {"all_reduce", all_reduce},
                                              {"attention", attention},
                                              {"attention_dx", attention_dx},
                                              {"clip_scale", clip_scale},
                                              {"clipped_schedule", clipped_schedule},
                                              {"cross_entropy", cross_entropy},
                                              {"cross_entropy_train", cross_entropy},
                                              {"embedding", embedding},
                                              {"embedding_dw", embedding_dw},
                                              {"join_windows", join_windows},
                                              {"layer_norm", layer_norm},
                                              {"layer_norm_dw", layer_norm_dw},
                                              {"layer_norm_dx", layer_norm_dx},
                                              {"linear", linear},
                                              {"linear_dw", linear_dw},
                                              {"linear_dx", linear_dx},
                                              {"logit_stats", logit_stats},
                                              {"logit_stats_dx", logit_stats_dx},
                                              {"loss_of_stats", loss_of_stats},
                                              {"no_share", of_no_neighbour},
                                              {"one_summand", of_one_rank},
                                              {"permute_shards", of_one_rank},
                                              {"position_dw", position_dw},
                                              {"receive_next", of_no_neighbour},
                                              {"receive_previous", of_no_neighbour},
                                              {"reduce_scatter_flat", reduce_scatter_flat},
                                              {"reduce_scatter", of_one_rank},
                                              {"router", linear},
                                              {"router_dw", linear_dw},
                                              {"router_dx", linear_dx},
                                              {"send_next", of_no_neighbour},
                                              {"send_previous", of_no_neighbour},
                                              {"sgd", sgd},
                                              {"squared_norm", squared_norm},
                                              {"sum_shards", of_one_rank},
                                              {"swap_shards", of_one_rank},
                                              {"take_shard", take_shard},
                                              {"take_window", take_shard},
                                              {"zero", zero},
                                              {"zeros", zeros}};
  add_moe_references(table);
  add_choice_references(table);
  add_decode_references(table);
  add_rotate_references(table);
  add_draw_references(table);
  add_expert_references(table);
  return table;
}

}  // namespace

Reference find_reference(std::string_view op) {
  static const auto table = make_references();
  const auto it = table.find(op);
  return it == table.end() ? nullptr : it->second;
}

}  // namespace lancet::test
