// The references of the experts' products, and of GELU alone and within a product.
#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include "ops/references/reference_ops.h"

namespace lancet::test {
namespace {

using Index = std::int64_t;

// ---- experts: only rows [rows[e,0], rows[e,W]) count

template <class F>
void for_rows(const DoubleTensor& rows, Index R, F f) {  // f(e, row of [E*R])
  const Index E = rows.shape()[0], columns = rows.shape()[1];
  for (Index e = 0; e < E; ++e)
    for (Index r = Index(rows[e * columns]); r < Index(rows[e * columns + columns - 1]); ++r) f(e, e * R + r);
}

void expert_linear(ReferenceCall& c) {  // x [E,R,K], w [E,N,K] [, b [E,N]], rows
  const auto &x = c.operands[0], &w = c.operands[1];
  const bool biased = c.operands.size() > 3;
  const Index N = w.shape()[1], K = w.shape()[2];
  c.length = double(K);
  for_rows(c.operands.back(), x.shape()[1], [&](Index e, Index r) {
    for (Index n = 0; n < N; ++n) {
      double sum = biased ? c.operands[2][e * N + n] : 0.0;
      for (Index k = 0; k < K; ++k) sum += x[r * K + k] * w[(e * N + n) * K + k];
      c.results[0][r * N + n] = sum;
    }
  });
}

void expert_linear_dx(ReferenceCall& c) {  // dy [E,R,N], w [E,N,K], rows
  const auto &dy = c.operands[0], &w = c.operands[1];
  const Index N = w.shape()[1], K = w.shape()[2];
  c.length = double(N);
  for_rows(c.operands[2], dy.shape()[1], [&](Index e, Index r) {
    for (Index k = 0; k < K; ++k) {
      double sum = 0;
      for (Index n = 0; n < N; ++n) sum += dy[r * N + n] * w[(e * N + n) * K + k];
      c.results[0][r * K + k] = sum;
    }
  });
}

void expert_linear_dw(ReferenceCall& c) {  // dy [E,R,N], x [E,R,K], rows [, accumulators of dw, db]
  const auto &dy = c.operands[0], &x = c.operands[1];
  const Index N = dy.shape()[2], K = x.shape()[2];
  c.length = double(dy.shape()[1]);
  for (std::size_t i = 0; i < c.results.size(); ++i)
    for (Index j = 0; j < Index(c.results[i].values.size()); ++j)
      c.results[i][j] = c.has(3 + i) ? c.operands[3 + i][j] : 0.0;
  for_rows(c.operands[2], dy.shape()[1], [&](Index e, Index r) {
    for (Index n = 0; n < N; ++n) {
      for (Index k = 0; k < K; ++k) c.results[0][(e * N + n) * K + k] += dy[r * N + n] * x[r * K + k];
      if (c.results.size() > 1) c.results[1][e * N + n] += dy[r * N + n];
    }
  });
}

// ---- GELU, over all elements or the filled rows

double gelu_of(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}
double gelu_slope(double x) {
  const double a = std::sqrt(2 / std::numbers::pi), t = std::tanh(a * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * a * (1 + 3 * 0.044715 * x * x);
}

template <class F>
void for_elements_of(const DoubleTensor& tensor, const DoubleTensor& rows, F f) {
  const Shape& shape = tensor.shape();
  for_rows(rows, shape[1], [&](Index, Index r) {
    for (Index i = r * shape[2]; i < (r + 1) * shape[2]; ++i) f(i);
  });
}

template <class F>
void for_elements(ReferenceCall& c, std::size_t rows, F f) {
  if (!c.has(rows)) {
    for (Index i = 0; i < Index(c.results[0].values.size()); ++i) c.results[0][i] = f(i);
    return;
  }
  for_elements_of(c.results[0], c.operands[rows], [&](Index i) { c.results[0][i] = f(i); });
}
void gelu(ReferenceCall& c) {
  for_elements(c, 1, [&](Index i) { return gelu_of(c.operands[0][i]); });
}
void gelu_dx(ReferenceCall& c) {
  for_elements(c, 2, [&](Index i) { return c.operands[0][i] * gelu_slope(c.operands[1][i]); });
}

// ---- SwiGLU: gate and up of each feature are side by side

double silu(double x) { return x / (1 + std::exp(-x)); }
void swiglu(ReferenceCall& c) {
  for_elements(c, 1, [&](Index i) { return silu(c.operands[0][2 * i]) * c.operands[0][2 * i + 1]; });
}
void swiglu_dx(ReferenceCall& c) {
  const auto &dy = c.operands[0], &x = c.operands[1];
  for_elements(c, 2, [&](Index i) {
    const double gate = x[i - i % 2], up = x[i - i % 2 + 1], s = 1 / (1 + std::exp(-gate));
    return dy[i / 2] * (i % 2 == 0 ? up * (s + gate * s * (1 - s)) : gate * s);
  });
}

// ---- rows times the sigmoid of a number each

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }
void sigmoid_gate(ReferenceCall& c) {  // x, gate
  const Index D = c.operands[0].shape().back();
  for (Index i = 0; i < Index(c.results[0].values.size()); ++i)
    c.results[0][i] = c.operands[0][i] * sigmoid_of(c.operands[1][i / D]);
}
void sigmoid_gate_dgate(ReferenceCall& c) {  // dy, x, gate
  const Index D = c.operands[0].shape().back();
  c.length = double(D);
  for (Index r = 0; r < Index(c.results[0].values.size()); ++r) {
    const double s = sigmoid_of(c.operands[2][r]);
    c.results[0][r] = 0;
    for (Index d = 0; d < D; ++d) c.results[0][r] += c.operands[0][r * D + d] * c.operands[1][r * D + d] * s * (1 - s);
  }
}

// ---- GELU within a product

// If the product is rounded before GELU, the result's error includes the rounding of `rounded`.
std::vector<double> terms_with(const DoubleTensor& result, const DoubleTensor& rounded) {
  double squares = 0, counted = 0;
  for (double x : result.values)
    if (!std::isnan(x)) squares += x * x, counted += 1;
  std::vector<double> terms(result.values.size(), std::sqrt(squares / std::max(counted, 1.0)));
  for (std::size_t i = 0; i < terms.size(); ++i)
    if (!std::isnan(rounded[Index(i)])) terms[i] += std::abs(rounded[Index(i)]);
  return terms;
}

double dense_sum(const DoubleTensor& x, Index row, const DoubleTensor& w, Index column, Index terms, bool transposed) {
  const Index width = w.shape()[1];
  double sum = 0;
  for (Index t = 0; t < terms; ++t) sum += x[row * terms + t] * w[transposed ? t * width + column : column * width + t];
  return sum;
}
void linear_gelu(ReferenceCall& c) {  // x [R,K], w [N,K], b [N] -> h, y
  const Index N = c.operands[1].shape()[0], K = c.operands[1].shape()[1];
  c.length = double(K);
  for (Index i = 0; i < Index(c.results[0].values.size()); ++i) {
    c.results[0][i] = dense_sum(c.operands[0], i / N, c.operands[1], i % N, K, false);
    if (c.has(2)) c.results[0][i] += c.operands[2][i % N];
    c.results[1][i] = gelu_of(c.results[0][i]);
  }
  c.terms = {{}, terms_with(c.results[1], c.results[0])};
}
void linear_dx_gelu(ReferenceCall& c) {  // dy [R,N], w [N,K], h [R,K]
  const Index N = c.operands[1].shape()[0], K = c.operands[1].shape()[1];
  c.length = double(N);
  for (Index i = 0; i < Index(c.results[0].values.size()); ++i)
    c.results[0][i] = dense_sum(c.operands[0], i / K, c.operands[1], i % K, N, true) * gelu_slope(c.operands[2][i]);
  c.terms = {terms_with(c.results[0], c.results[0])};
}
void expert_linear_gelu(ReferenceCall& c) {
  expert_linear(c);
  for_elements_of(c.results[1], c.operands[3], [&](Index i) { c.results[1][i] = gelu_of(c.results[0][i]); });
  c.terms = {{}, terms_with(c.results[1], c.results[0])};
}
void expert_linear_dx_gelu(ReferenceCall& c) {  // dy, w, h, rows
  const DoubleTensor h = c.operands[2];
  c.operands.erase(c.operands.begin() + 2);
  expert_linear_dx(c);
  c.operands.insert(c.operands.begin() + 2, h);
  for_elements_of(c.results[0], c.operands[3], [&](Index i) { c.results[0][i] *= gelu_slope(h[i]); });
  c.terms = {terms_with(c.results[0], c.results[0])};
}
}  // namespace

void add_expert_references(std::map<std::string_view, Reference>& table) {
  table.insert({{"expert_linear", expert_linear},
                {"expert_linear_dw", expert_linear_dw},
                {"expert_linear_dx", expert_linear_dx},
                {"expert_linear_dx_gelu", expert_linear_dx_gelu},
                {"expert_linear_gelu", expert_linear_gelu},
                {"expert_product", expert_linear},
                {"gelu", gelu},
                {"gelu_dx", gelu_dx},
                {"linear_dx_gelu", linear_dx_gelu},
                {"linear_gelu", linear_gelu},
                {"sigmoid_gate", sigmoid_gate},
                {"sigmoid_gate_dgate", sigmoid_gate_dgate},
                {"swiglu", swiglu},
                {"swiglu_dx", swiglu_dx}});
}

}  // namespace lancet::test
