// Rotary positions, written from the definitions of Hugging Face's modeling_rope_utils.py (in their names and order),
// and norms of queries and keys.
#include <algorithm>
#include <cmath>
#include <map>

#include "ops/references/reference_ops.h"

namespace lancet::test {
namespace {

using Index = std::int64_t;
constexpr double pi = 3.14159265358979323846;

std::vector<double> inverse_frequencies(const ir::Attributes& at, Index dim) {
  const double base = at.real("theta");
  std::vector<double> inv_freq;
  for (Index i = 0; i < dim; i += 2) inv_freq.push_back(1.0 / std::pow(base, double(i) / double(dim)));
  if (!at.has("scaling")) return inv_freq;
  const double factor = at.real("factor");
  if (at.text("scaling") == "linear") {
    for (double& f : inv_freq) f /= factor;
    return inv_freq;
  }
  const double old_context_len = at.real("original_max_position_embeddings");
  if (at.text("scaling") == "llama3") {
    const double low_freq_factor = at.real("low_freq_factor"), high_freq_factor = at.real("high_freq_factor");
    const double low_freq_wavelen = old_context_len / low_freq_factor;
    const double high_freq_wavelen = old_context_len / high_freq_factor;
    for (double& f : inv_freq) {
      const double wavelen = 2 * pi / f;
      if (wavelen < high_freq_wavelen) continue;
      if (wavelen > low_freq_wavelen) {
        f /= factor;
        continue;
      }
      const double smooth_factor = (old_context_len / wavelen - low_freq_factor) / (high_freq_factor - low_freq_factor);
      f = (1 - smooth_factor) * f / factor + smooth_factor * f;
    }
    return inv_freq;
  }
  const auto find_correction_dim = [&](double num_rotations) {
    return (double(dim) * std::log(old_context_len / (num_rotations * 2 * pi))) / (2 * std::log(base));
  };
  const double beta_fast = at.has("beta_fast") ? at.real("beta_fast") : 32;
  const double beta_slow = at.has("beta_slow") ? at.real("beta_slow") : 1;
  const double low = std::max(std::floor(find_correction_dim(beta_fast)), 0.0);
  double high = std::min(std::ceil(find_correction_dim(beta_slow)), double(dim - 1));
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < inv_freq.size(); ++i) {
    const double ramp = std::min(1.0, std::max(0.0, (double(i) - low) / (high - low)));
    const double extrapolation_factor = 1 - ramp;
    inv_freq[i] = inv_freq[i] / factor * (1 - extrapolation_factor) + inv_freq[i] * extrapolation_factor;
  }
  return inv_freq;
}

struct Rows {
  Index B, S, Q, K, d;  // batch, sequence, heads of queries, of keys, head size
  std::vector<double> inv_freq;
  double attention_factor = 1, eps = 0;
  Index first = 0;  // position

  Rows(const ReferenceCall& c)
      : B(c.operands[0].shape()[0]),
        S(c.operands[0].shape()[1]),
        Q(c.attributes.integer("heads") * c.attributes.integer("group", 1)),
        K(c.attributes.integer("heads")),
        d(c.operands[0].shape()[2] / (Q + 2 * K)),
        inv_freq(inverse_frequencies(c.attributes, d)) {
    first = c.attributes.integer("before", 0);
    if (c.attributes.has("eps")) eps = c.attributes.real("eps");
    if (!c.attributes.has("scaling") || c.attributes.text("scaling") != "yarn") return;
    attention_factor = c.attributes.has("attention_factor") ? c.attributes.real("attention_factor")
                                                            : 0.1 * std::log(c.attributes.real("factor")) + 1.0;
  }
  Index at(Index b, Index s, Index h) const { return ((b * S + s) * (Q + 2 * K) + h) * d; }
  // The angle is a product in f32.
  double angle(Index s, Index i) const {
    return double(float(double(first + s) * double(float(inv_freq[std::size_t(i % (d / 2))]))));
  }
  double cosine(Index s, Index i) const { return std::cos(angle(s, i)) * attention_factor; }
  double sine(Index s, Index i) const { return std::sin(angle(s, i)) * attention_factor; }
  double rsqrt(const DoubleTensor& x, Index at) const {
    double squares = 0;
    for (Index i = 0; i < d; ++i) squares += x[at + i] * x[at + i];
    return 1 / std::sqrt(squares / double(d) + eps);
  }
  // The gradient of element i of the head that is rotated: the transpose of the rotation.
  double back(const DoubleTensor& dy, Index at, Index s, Index i) const {
    const double other = i < d / 2 ? dy[at + i + d / 2] * sine(s, i) : -dy[at + i - d / 2] * sine(s, i);
    return dy[at + i] * cosine(s, i) + other;
  }
  template <class F>
  void for_heads(F f) const {
    for (Index b = 0; b < B; ++b)
      for (Index s = 0; s < S; ++s)
        for (Index h = 0; h < Q + 2 * K; ++h) f(s, h, at(b, s, h));
  }
};

double rounded(double x, DType dtype) { return dtype == DType::bf16 ? double(to_f32(from_f32<bf16>(float(x)))) : x; }

void rotate_from(ReferenceCall& c, std::size_t first_gamma, Index first) {
  const auto& x = c.operands[0];
  Rows n(c);
  n.first += first;
  c.length = double(n.d);
  c.terms = {std::vector<double>(x.values.size(), 0.0)};
  n.for_heads([&](Index s, Index h, Index at) {
    std::vector<double> head(x.values.begin() + at, x.values.begin() + at + n.d);
    if (h < n.Q + n.K && c.has(first_gamma)) {
      const auto& gamma = c.operands[first_gamma + (h < n.Q ? 0 : 1)];
      const double scale = n.rsqrt(x, at);
      for (Index i = 0; i < n.d; ++i)
        head[std::size_t(i)] = rounded(head[std::size_t(i)] * scale, x.type.dtype) * gamma[i];
    }
    for (Index i = 0; i < n.d; ++i) {
      const double own = head[std::size_t(i)], paired = head[std::size_t((i + n.d / 2) % n.d)];
      const double rotated = own * n.cosine(s, i) + (i < n.d / 2 ? -paired : paired) * n.sine(s, i);
      c.results[0][at + i] = h < n.Q + n.K ? rotated : own;
      c.terms[0][std::size_t(at + i)] = h < n.Q + n.K ? std::abs(own) + std::abs(paired) : 0;
    }
  });
}

void rotate(ReferenceCall& c) { rotate_from(c, 1, 0); }
void rotate_at(ReferenceCall& c) { rotate_from(c, 2, Index(c.operands[1][0])); }

void rotate_dx(ReferenceCall& c) {  // dy [, qkv, gammas]
  const auto& dy = c.operands[0];
  const Rows n(c);
  c.length = double(n.d);
  n.for_heads([&](Index s, Index h, Index at) {
    if (h >= n.Q + n.K || !c.has(1)) {
      for (Index i = 0; i < n.d; ++i) c.results[0][at + i] = h < n.Q + n.K ? n.back(dy, at, s, i) : dy[at + i];
      return;
    }
    const auto &x = c.operands[1], &gamma = c.operands[h < n.Q ? 2 : 3];
    const double scale = n.rsqrt(x, at);
    double dot = 0;
    for (Index i = 0; i < n.d; ++i) dot += n.back(dy, at, s, i) * gamma[i] * x[at + i] * scale;
    for (Index i = 0; i < n.d; ++i)
      c.results[0][at + i] = scale * (n.back(dy, at, s, i) * gamma[i] - x[at + i] * scale * dot / double(n.d));
  });
}

void rotate_dw(ReferenceCall& c) {  // dy, qkv [, accumulators]
  const auto &dy = c.operands[0], &x = c.operands[1];
  const Rows n(c);
  c.length = double(n.B * n.S * n.Q + n.d);
  c.terms.assign(2, std::vector<double>(std::size_t(n.d), 0.0));
  for (std::size_t r = 0; r < 2; ++r)
    for (Index i = 0; i < n.d; ++i) c.results[r][i] = c.has(2) ? c.operands[2 + r][i] : 0.0;
  n.for_heads([&](Index s, Index h, Index at) {
    if (h >= n.Q + n.K) return;
    const std::size_t r = h < n.Q ? 0 : 1;
    const double scale = n.rsqrt(x, at);
    for (Index i = 0; i < n.d; ++i) {
      const double term = n.back(dy, at, s, i) * x[at + i] * scale;
      c.results[r][i] += term;
      c.terms[r][std::size_t(i)] += std::abs(term);
    }
  });
}

// ---- RMSNorm over all features of q, and of k

struct Features {
  Index R, Q, K, W;  // rows; features of q and of k; width of a row
  double all[2], eps = 0, clip = 0;
  Features(const DoubleTensor& qkv, const ir::Attributes& at)
      : R(qkv.shape().rows()),
        Q(at.integer("heads") * at.integer("group", 1) * at.integer("head_dim")),
        K(at.integer("heads") * at.integer("head_dim")),
        W(Q + 2 * K) {
    if (!at.has("all_heads")) return;
    all[1] = double(at.integer("all_heads") * at.integer("head_dim"));
    all[0] = all[1] * double(at.integer("group", 1));
    eps = at.real("eps");
    clip = at.real("clip", 0);
  }
  template <class F>
  void for_each_value(F f) const {  // f(element of qkv)
    for (Index r = 0; r < R; ++r)
      for (Index i = Q + K; i < W; ++i) f(r * W + i);
  }
  template <class F>
  void for_each(F f) const {  // f(row, q 0 or k 1, feature of it, element of qkv)
    for (Index r = 0; r < R; ++r)
      for (Index i = 0; i < Q + K; ++i) f(r, Index(i >= Q), i < Q ? i : i - Q, r * W + i);
  }
  double scale(const DoubleTensor& squares, Index r, Index which) const {
    return 1 / std::sqrt(squares[2 * r + which] / all[which] + eps);
  }
  bool is_within(double y) const { return clip == 0 || std::abs(y) <= clip; }
  double limited(double y) const { return is_within(y) ? y : std::copysign(clip, y); }
};

void wide_norm_squares(ReferenceCall& c) {
  const auto& x = c.operands[0];
  const Features n(x, c.attributes);
  c.length = double(n.Q);
  std::fill(c.results[0].values.begin(), c.results[0].values.end(), 0.0);
  n.for_each([&](Index r, Index which, Index, Index at) { c.results[0][2 * r + which] += x[at] * x[at]; });
}

void wide_norm_squares_dx(ReferenceCall& c) {
  const auto &dsquares = c.operands[0], &x = c.operands[1];
  const Features n(x, c.attributes);
  std::fill(c.results[0].values.begin(), c.results[0].values.end(), 0.0);
  n.for_each([&](Index r, Index which, Index, Index at) { c.results[0][at] = 2 * x[at] * dsquares[2 * r + which]; });
}

void wide_norm(ReferenceCall& c) {  // qkv, gammas, squares
  const auto& x = c.operands[0];
  const Features n(x, c.attributes);
  n.for_each([&](Index r, Index which, Index i, Index at) {
    const double y =
        rounded(x[at] * n.scale(c.operands[3], r, which), x.type.dtype) * c.operands[std::size_t(1 + which)][i];
    c.results[0][at] = n.limited(y);
  });
  n.for_each_value([&](Index at) { c.results[0][at] = n.limited(x[at]); });
}

void wide_norm_dx(ReferenceCall& c) {  // dy, qkv, gammas, squares
  const auto &dy = c.operands[0], &x = c.operands[1], &squares = c.operands[4];
  const Features n(x, c.attributes);
  c.length = double(n.Q);
  n.for_each_value([&](Index at) { c.results[0][at] = n.is_within(x[at]) ? dy[at] : 0; });
  std::fill(c.results[1].values.begin(), c.results[1].values.end(), 0.0);
  c.terms = {dy.values, c.results[1].values};
  for (double& term : c.terms[0]) term = std::abs(term);
  n.for_each([&](Index r, Index which, Index i, Index at) {
    const double s = n.scale(squares, r, which), gamma = c.operands[std::size_t(2 + which)][i];
    const double g = n.is_within(rounded(x[at] * s, x.type.dtype) * gamma) ? dy[at] * gamma : 0;
    const double of_squares = -0.5 * s * s * s / n.all[which] * g * x[at];
    c.results[0][at] = g * s;
    c.terms[0][std::size_t(at)] = std::abs(g * s);
    c.results[1][2 * r + which] += of_squares;
    c.terms[1][std::size_t(2 * r + which)] += std::abs(of_squares);
  });
}

void wide_norm_dw(ReferenceCall& c) {  // dy, qkv, gammas, squares [, accumulators]
  const auto &dy = c.operands[0], &x = c.operands[1];
  const Features n(x, c.attributes);
  c.length = double(n.R);
  for (std::size_t g = 0; g < 2; ++g)
    for (std::size_t i = 0; i < c.results[g].values.size(); ++i)
      c.results[g].values[i] = c.has(5) ? c.operands[5 + g].values[i] : 0.0;
  n.for_each([&](Index r, Index which, Index i, Index at) {
    const double normed = x[at] * n.scale(c.operands[4], r, which);
    if (n.is_within(rounded(normed, x.type.dtype) * c.operands[std::size_t(2 + which)][i]))
      c.results[std::size_t(which)][i] += dy[at] * normed;
  });
}

}  // namespace

void add_rotate_references(std::map<std::string_view, Reference>& table) {
  table.insert({{"rotate", rotate},
                {"rotate_at", rotate_at},
                {"rotate_dx", rotate_dx},
                {"rotate_dw", rotate_dw},
                {"wide_norm_squares", wide_norm_squares},
                {"wide_norm_squares_dx", wide_norm_squares_dx},
                {"wide_norm", wide_norm},
                {"wide_norm_dx", wide_norm_dx},
                {"wide_norm_dw", wide_norm_dw}});
}

}  // namespace lancet::test
