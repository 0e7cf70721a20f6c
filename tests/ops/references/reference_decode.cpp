#include <cmath>
#include <map>

#include "ops/references/reference_ops.h"

namespace lancet::test {
namespace {

using Index = std::int64_t;

void embedding_at(ReferenceCall& c) {  // tokens [B,S], wte [V,D], wpe [P,D], position
  const auto &tokens = c.operands[0], &wte = c.operands[1], &wpe = c.operands[2], &place = c.operands[3];
  const Index S = tokens.shape()[1], D = wte.shape()[1], P = wpe.shape()[0];
  for (Index t = 0; t < tokens.shape().elements(); ++t) {
    const Index position = std::min(Index(place[0]) + t % S, P - 1);
    const Index row = Index(tokens[t]) - c.place * wte.shape()[0];
    const bool here = row >= 0 && row < wte.shape()[0];
    for (Index d = 0; d < D; ++d) c.results[0][t * D + d] = (here ? wte[row * D + d] : 0) + wpe[position * D + d];
  }
}

void attention_decode(ReferenceCall& c) {  // qkv [B,S,(G+1+1)*K*d], keys and values [B,K,P,d], position
  const auto& qkv = c.operands[0];
  auto &keys = c.operands[1], &values = c.operands[2];
  const Index B = keys.shape()[0], K = keys.shape()[1], P = keys.shape()[2], d = keys.shape()[3], S = qkv.shape()[1];
  const Index G = c.attributes.integer("group", 1), H = G * K;
  const Index first = Index(c.operands[3][0]), rows = Index(c.operands[3][1]) + 1;
  auto packed = [&](Index b, Index s, Index which, Index h, Index i) {
    return ((b * S + s) * (H + 2 * K) + (which == 0 ? h : H + (which - 1) * K + h)) * d + i;
  };
  auto cached = [&](Index b, Index h, Index p, Index i) { return ((b * K + h) * P + p) * d + i; };
  c.length = double(P + d);
  c.terms = {std::vector<double>(c.results[0].values.size(), 0.0)};
  for (Index b = 0; b < B; ++b) {
    for (Index h = 0; h < K; ++h)
      for (Index s = 0; s < rows; ++s)
        for (Index i = 0; i < d; ++i) {
          keys[cached(b, h, first + s, i)] = qkv[packed(b, s, 1, h, i)];
          values[cached(b, h, first + s, i)] = qkv[packed(b, s, 2, h, i)];
        }
    for (Index h = 0; h < H; ++h)
      for (Index s = 0; s < S; ++s) {
        std::vector<double> p;
        double total = 0;
        for (Index t = 0; s < rows && t <= first + s; ++t) {
          double score = 0;
          for (Index i = 0; i < d; ++i) score += qkv[packed(b, s, 0, h, i)] * keys[cached(b, h / G, t, i)];
          total += p.emplace_back(std::exp(score / std::sqrt(double(d))));
        }
        for (Index i = 0; i < d; ++i) {
          const Index at = ((b * S + s) * H + h) * d + i;
          c.results[0][at] = 0;
          for (Index t = 0; t < Index(p.size()); ++t) {
            const double term = p[std::size_t(t)] / total * values[cached(b, h / G, t, i)];
            c.results[0][at] += term;
            c.terms[0][std::size_t(at)] += std::abs(term);
          }
        }
      }
  }
}

void take_row(ReferenceCall& c) {  // x [B,S,D], position
  const auto& x = c.operands[0];
  const Index S = x.shape()[1], D = x.shape()[2];
  for (Index b = 0; b < x.shape()[0]; ++b)
    for (Index d = 0; d < D; ++d) c.results[0][b * D + d] = x[(b * S + Index(c.operands[1][1])) * D + d];
}

}  // namespace

void add_decode_references(std::map<std::string_view, Reference>& table) {
  table.insert({{"embedding_at", embedding_at}, {"attention_decode", attention_decode}, {"take_row", take_row}});
}

}  // namespace lancet::test
