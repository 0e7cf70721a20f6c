#include "lancet/backend/cpu/attention.h"

#include <array>
#include <catch2/catch.hpp>

#include "lancet/backend/cpu/buffer.h"
#include "lancet/backend/cpu/parallel.h"
#include "support.h"

namespace lancet::backend::cpu {
namespace {

struct Inputs {
  explicit Inputs(const AttentionDesc& d)
      : desc(d),
        qkv(Elements::random(d.batch * d.sequence * (d.group + 2) * d.heads * d.head_dim, d.dtype, 1)),
        dout(Elements::random(d.batch * d.sequence * d.group * d.heads * d.head_dim, d.dtype, 2)) {}
  AttentionDesc desc;
  Elements qkv, dout;
};

struct Outputs {
  explicit Outputs(const AttentionDesc& d)
      : out(d.batch * d.sequence * d.group * d.heads * d.head_dim, d.dtype),
        lse(d.batch * d.group * d.heads * d.sequence, DType::f32),
        dqkv(d.batch * d.sequence * (d.group + 2) * d.heads * d.head_dim, d.dtype) {}
  Elements out, lse, dqkv;
};

// The workspace starts as NaN, so that a kernel which relies on its content fails.
Buffer poisoned(std::size_t bytes) {
  Buffer b = Buffer::raw(bytes);
  for (float& x : b.span<float>()) x = kPoison;
  return b;
}

Outputs run(Inputs& in) {
  Outputs o(in.desc);
  Buffer w = poisoned(attention_forward_workspace_bytes(in.desc, threads()));
  attention_forward(in.desc, in.qkv.data(), in.qkv.data(), o.out.data(), static_cast<float*>(o.lse.data()), w.data());
  Buffer v = poisoned(attention_backward_workspace_bytes(in.desc, threads()));
  attention_backward(in.desc, in.dout.data(), in.qkv.data(), in.qkv.data(), o.out.data(),
                     static_cast<const float*>(o.lse.data()), o.dqkv.data(), nullptr, false, v.data());
  return o;
}

// One head in double, by the formulas as they are written.
class Reference {
 public:
  Reference(const Inputs& in, std::int64_t batch, std::int64_t head)
      : in_(in), d_(in.desc), batch_(batch), head_(head) {
    const std::int64_t s = d_.sequence, f = d_.head_dim;
    out.assign(std::size_t(s * f), 0), lse.assign(std::size_t(s), 0), grad.assign(std::size_t(3 * s * f), 0);
    for (std::int64_t i = 0; i < s; ++i) query(i);
  }
  std::int64_t at(std::int64_t position, std::int64_t which, std::int64_t feature) const {
    return (((batch_ * d_.sequence + position) * 3 + which) * d_.heads + head_) * d_.head_dim + feature;
  }
  std::int64_t out_at(std::int64_t position, std::int64_t feature) const {
    return ((batch_ * d_.sequence + position) * d_.heads + head_) * d_.head_dim + feature;
  }
  std::vector<double> out, lse, grad;  // [S][hd], [S], [3][S][hd]

 private:
  void query(std::int64_t i) {
    const std::int64_t f = d_.head_dim, s = d_.sequence;
    const double scale = 1 / std::sqrt(static_cast<double>(f));
    std::vector<double> p(std::size_t(i + 1));
    double top = -1e300, sum = 0, delta = 0;
    for (std::int64_t j = 0; j <= i; ++j) {
      for (std::int64_t h = 0; h < f; ++h) p[std::size_t(j)] += scale * in_.qkv[at(i, 0, h)] * in_.qkv[at(j, 1, h)];
      top = std::max(top, p[std::size_t(j)]);
    }
    for (double& x : p) sum += x = std::exp(x - top);
    for (double& x : p) x /= sum;
    lse[std::size_t(i)] = top + std::log(sum);
    for (std::int64_t h = 0; h < f; ++h) {
      double& o = out[std::size_t(i * f + h)];
      for (std::int64_t j = 0; j <= i; ++j) o += p[std::size_t(j)] * in_.qkv[at(j, 2, h)];
      delta += o * in_.dout[out_at(i, h)];
    }
    for (std::int64_t j = 0; j <= i; ++j) {
      double dp = 0;
      for (std::int64_t h = 0; h < f; ++h) dp += in_.dout[out_at(i, h)] * in_.qkv[at(j, 2, h)];
      const double ds = p[std::size_t(j)] * (dp - delta) * scale;
      for (std::int64_t h = 0; h < f; ++h) {
        grad[std::size_t(i * f + h)] += ds * in_.qkv[at(j, 1, h)];
        grad[std::size_t((s + j) * f + h)] += ds * in_.qkv[at(i, 0, h)];
        grad[std::size_t((2 * s + j) * f + h)] += p[std::size_t(j)] * in_.dout[out_at(i, h)];
      }
    }
  }

  const Inputs& in_;
  const AttentionDesc& d_;
  std::int64_t batch_, head_;
};

// The largest differences over all heads; a NaN counts as infinite.
struct Errors {
  double out = 0, lse = 0, grad = 0, dv = 0;
};
Errors compare(const Inputs& in, const Outputs& o) {
  Errors e;
  auto note = [](double& worst, double got, double want) {
    const double error = std::fabs(got - want);
    worst = error <= worst ? worst : std::isnan(error) ? 1e300 : error;
  };
  const AttentionDesc& d = in.desc;
  for (std::int64_t b = 0; b < d.batch; ++b)
    for (std::int64_t h = 0; h < d.heads; ++h) {
      const Reference r(in, b, h);
      for (std::int64_t i = 0; i < d.sequence; ++i) {
        note(e.lse, o.lse[(b * d.heads + h) * d.sequence + i], r.lse[std::size_t(i)]);
        for (std::int64_t f = 0; f < d.head_dim; ++f) {
          note(e.out, o.out[r.out_at(i, f)], r.out[std::size_t(i * d.head_dim + f)]);
          for (std::int64_t w = 0; w < 3; ++w)
            note(w == 2 ? e.dv : e.grad, o.dqkv[r.at(i, w, f)],
                 r.grad[std::size_t((w * d.sequence + i) * d.head_dim + f)]);
        }
      }
    }
  return e;
}

TEST_CASE("attention agrees with its formulas in double") {
  set_threads(2);
  const std::int64_t cases[][4] = {{2, 1, 1, 1},   {1, 2, 2, 8},    {1, 7, 2, 3},    {2, 33, 3, 8},   {1, 64, 2, 64},
                                   {2, 65, 2, 17}, {1, 100, 1, 32}, {1, 127, 2, 40}, {1, 200, 1, 80}, {3, 31, 1, 128}};
  for (const auto& c : cases)
    for (DType type : {DType::f32, DType::bf16}) {
      INFO(c[0] << " x " << c[1] << ", " << c[2] << " heads of " << c[3] << " " << name(type));
      Inputs in({c[0], c[1], c[2], c[3], type});
      const Errors e = compare(in, run(in));
      // Inputs are near 1 and rows of P sum to 1, so outputs are of that size; gradients gather up to
      // sequence * head_dim terms, which cancel like a random walk. bf16 rounds the operands P and dS to 8 bits.
      // A score is off by some units of its terms' magnitudes, and a weight relatively by as much.
      const double terms = std::sqrt(static_cast<double>(c[1] * c[3])) + 4;
      const double unit = std::ldexp(1.0, type == DType::f32 ? -24 : -9), small = std::ldexp(1.0, -24);
      const double score = 3 * std::sqrt(static_cast<double>(c[3])) * small;
      CHECK(e.out <= 8 * unit + score);
      CHECK(e.lse <= 8 * small + score);
      CHECK(std::max(e.grad, e.dv) <= terms * (4 * unit + score));
    }
}

TEST_CASE("attention's backward agrees with finite differences of its forward") {
  set_threads(1);
  Inputs in({1, 5, 2, 3, DType::f32});
  const Outputs o = run(in);
  auto loss = [&](const Inputs& x) {  // sum of dout * out
    double sum = 0;
    for (std::int64_t h = 0; h < x.desc.heads; ++h) {
      const Reference r(x, 0, h);
      for (std::int64_t i = 0; i < x.desc.sequence; ++i)
        for (std::int64_t f = 0; f < x.desc.head_dim; ++f)
          sum += x.dout[r.out_at(i, f)] * r.out[std::size_t(i * x.desc.head_dim + f)];
    }
    return sum;
  };
  for (std::int64_t i = 0; i < in.qkv.size(); ++i) {
    Inputs up = in, down = in;
    const float step = 1.f / 1024;
    up.qkv.set(i, static_cast<float>(in.qkv[i]) + step);
    down.qkv.set(i, static_cast<float>(in.qkv[i]) - step);
    const double slope = (loss(up) - loss(down)) / (up.qkv[i] - down.qkv[i]);
    INFO("element " << i);
    CHECK(o.dqkv[i] == Approx(slope).margin(2e-5));
  }
}

TEST_CASE("large scores neither overflow nor change order") {
  set_threads(1);
  for (DType type : {DType::f32, DType::bf16})
    for (const int bits : {4, 17, 27}) {  // queries and keys times 2^bits, exact in bf16: scores up to 1e3, 1e11, 1e17
      INFO(name(type) << ", queries and keys times 2^" << bits);
      Inputs in({1, 40, 1, 12, type});
      for (std::int64_t i = 0; i < in.qkv.size(); ++i)
        if (i / 12 % 3 < 2) in.qkv.set(i, std::ldexp(static_cast<float>(in.qkv[i]), bits));
      const Outputs o = run(in);
      for (std::int64_t i = 0; i < o.dqkv.size(); ++i) REQUIRE(std::isfinite(o.dqkv[i]));
      const Errors e = compare(in, o);
      CHECK(e.out <= (type == DType::f32 ? 1e-2 : 3e-2));  // scores near 1000, and the weights, are exact to 6e-5
      CHECK(e.dv <= (type == DType::f32 ? 1e-2 : 3e-2));
    }
}

TEST_CASE("a sequence's bits do not depend on the batch or the threads") {
  for (DType type : {DType::f32, DType::bf16}) {
    const AttentionDesc d{4, 70, 3, 24, type};
    Inputs in(d);
    set_threads(1);
    const Outputs whole = run(in);
    for (int count : {2, 3, 16}) {
      set_threads(count);
      const Outputs again = run(in);
      INFO(name(type) << " threads " << count);
      CHECK(same_bits(again.out, whole.out));
      CHECK(same_bits(again.lse, whole.lse));
      CHECK(same_bits(again.dqkv, whole.dqkv));
    }
    set_threads(2);
    for (std::int64_t parts : {2, 4}) {
      Inputs part({d.batch / parts, d.sequence, d.heads, d.head_dim, type});
      const std::int64_t size = part.qkv.size();
      for (std::int64_t p = 0; p < parts; ++p) {
        for (std::int64_t i = 0; i < size; ++i) part.qkv.set(i, static_cast<float>(in.qkv[p * size + i]));
        for (std::int64_t i = 0; i < size / 3; ++i) part.dout.set(i, static_cast<float>(in.dout[p * size / 3 + i]));
        const Outputs o = run(part);
        std::int64_t wrong = 0;
        for (std::int64_t i = 0; i < size; ++i) wrong += o.dqkv[i] != whole.dqkv[p * size + i];
        for (std::int64_t i = 0; i < size / 3; ++i) wrong += o.out[i] != whole.out[p * size / 3 + i];
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("parts of the positions have the bits of the whole, but for sums of the gradients of keys") {
  set_threads(2);
  for (DType type : {DType::f32, DType::bf16})
    for (const auto& [sequence, parts, group] : {std::array<std::int64_t, 3>{128, 2, 1}, {105, 3, 4}, {8, 8, 2}}) {
      INFO(name(type) << ", " << sequence << " positions in " << parts << " parts, groups of " << group);
      const AttentionDesc d{1, sequence, 2, 24, type, group};
      Inputs in(d);
      const Outputs whole = run(in);
      const std::int64_t rows = sequence / parts, width = (group + 2) * 2 * 24, heads = group * 2;
      std::vector<float> sums(std::size_t(sequence * 2 * 2 * 24), kPoison);
      std::int64_t wrong = 0;
      double worst = 0;
      for (std::int64_t p = parts; p-- > 0;) {
        AttentionDesc part = d;
        part.sequence = rows, part.before = p * rows;
        const auto slice = [&](Elements& of, std::int64_t row) {
          return static_cast<std::byte*>(of.data()) + std::int64_t(size_of(type)) * row * part.before;
        };
        Outputs o(part);
        Buffer w = poisoned(attention_forward_workspace_bytes(part, threads()));
        attention_forward(part, slice(in.qkv, width), in.qkv.data(), o.out.data(), static_cast<float*>(o.lse.data()),
                          w.data());
        Buffer v = poisoned(attention_backward_workspace_bytes(part, threads()));
        attention_backward(part, slice(in.dout, heads * 24), slice(in.qkv, width), in.qkv.data(), o.out.data(),
                           static_cast<const float*>(o.lse.data()), o.dqkv.data(), sums.data(), p + 1 < parts,
                           v.data());
        for (std::int64_t i = 0; i < o.out.size(); ++i) wrong += o.out[i] != whole.out[part.before * heads * 24 + i];
        for (std::int64_t i = 0; i < o.lse.size(); ++i)
          wrong += o.lse[i] != whole.lse[i / rows * sequence + part.before + i % rows];
        for (std::int64_t i = 0; i < o.dqkv.size(); ++i) {
          const double expected = whole.dqkv[part.before * width + i];
          if (i % width < heads * 24)
            wrong += o.dqkv[i] != expected;
          else
            worst = std::max(worst, std::fabs(o.dqkv[i] - expected) / (1 + std::fabs(expected)));
        }
      }
      CHECK(wrong == 0);
      CHECK(worst <= std::ldexp(1.0, type == DType::f32 ? -19 : -7));
    }
}

TEST_CASE("a group of heads of queries has the results of as many heads with copies of the keys and values") {
  for (DType type : {DType::f32, DType::bf16})
    for (const auto& [heads, group, head_dim] : {std::array<std::int64_t, 3>{2, 2, 64}, {1, 4, 80}, {2, 3, 17}}) {
      INFO(name(type) << ", " << heads << " groups of " << group << " heads of " << head_dim);
      Inputs in({2, 70, heads, head_dim, type, group}), copied({2, 70, heads * group, head_dim, type});
      const std::int64_t queries = heads * group;
      auto place = [&](std::int64_t row, std::int64_t which, std::int64_t query, std::int64_t f) {  // in in.qkv
        const std::int64_t head = which == 0 ? query : queries + (which - 1) * heads + query / group;
        return (row * (queries + 2 * heads) + head) * head_dim + f;
      };
      auto for_each = [&](auto f) {  // f(place in copied.qkv, row, which, head of queries, feature)
        for (std::int64_t i = 0; i < copied.qkv.size(); ++i) {
          const std::int64_t at = i / head_dim;
          f(i, at / queries / 3, at / queries % 3, at % queries, i % head_dim);
        }
      };
      for_each([&](std::int64_t i, auto... at) { copied.qkv.set(i, static_cast<float>(in.qkv[place(at...)])); });
      set_threads(1);
      const Outputs o = run(in), whole = run(copied);
      set_threads(3);
      const Outputs again = run(in);
      CHECK(same_bits(o.out, whole.out));
      CHECK(same_bits(o.lse, whole.lse));
      CHECK(same_bits(again.out, o.out));
      CHECK(same_bits(again.dqkv, o.dqkv));
      std::vector<double> sums(std::size_t(o.dqkv.size()));  // of the heads' gradients
      for_each([&](std::int64_t i, auto... at) { sums[std::size_t(place(at...))] += whole.dqkv[i]; });
      const double unit = std::ldexp(1.0, type == DType::f32 ? -16 : -5);
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < o.dqkv.size(); ++i) {
        const bool is_query = i / head_dim % (queries + 2 * heads) < queries;
        wrong += !(std::fabs(o.dqkv[i] - sums[std::size_t(i)]) <= (is_query ? 0 : unit));
      }
      CHECK(wrong == 0);
    }
}

TEST_CASE("attention's workspace does not grow with the batch or with the square of the sequence") {
  for (DType type : {DType::f32, DType::bf16}) {
    const AttentionDesc d{1, 512, 12, 64, type}, batch{64, 512, 12, 64, type}, longer{1, 2048, 12, 64, type};
    CHECK(attention_backward_workspace_bytes(d, 2) == attention_backward_workspace_bytes(batch, 2));
    CHECK(attention_backward_workspace_bytes(longer, 2) <= 4 * attention_backward_workspace_bytes(d, 2));
    CHECK(attention_forward_workspace_bytes(longer, 2) <= 4 * attention_forward_workspace_bytes(d, 2));
  }
}

}  // namespace
}  // namespace lancet::backend::cpu
