// Rotary positions for both devices: which features are a pair, and by which angle a position rotates it (Su et al.,
// RoFormer, 2021). Features i and i + hd/2 of a head are a pair, and their angle is position * inverse[i], in f32. The
// inverse frequencies are theta^(-2i/hd), computed in double and scaled to positions beyond those of the training:
//   linear   divided by `factor`
//   yarn     likewise for wavelengths that turn less than beta_slow times in the original positions, kept for those
//            that turn more than beta_fast times, and in between a ramp; sine and cosine times attention_factor (Peng
//            et al., YaRN, 2023)
//   llama3   likewise between original/low_freq_factor and original/high_freq_factor, in 1/wavelength, without a factor
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "lancet/base/hd.h"
#include "lancet/ir/program.h"

namespace lancet::ops {

struct SineCosine {
  float sine, cosine;
};

// Within 1.5e-7 of both for |x| below 2^31. The angle is reduced in double, without branches, so that a loop
// vectorises.
LANCET_HD SineCosine sine_cosine(float x) {
  constexpr double magic = 6755399441055744.;  // 1.5 * 2^52: adding it rounds to the nearest integer
  const double quarters = (double(x) * 0.63661977236758138 + magic) - magic;  // of turns
  const float r = float((double(x) - quarters * 1.5707963267948966) - quarters * 6.1232339957367660e-17), z = r * r;
  const float s = r + r * z * (-1.6666654611e-1f + z * (8.3321608736e-3f + z * -1.9515295891e-4f));
  const float c =
      1.f - 0.5f * z + z * z * (4.166664568298827e-2f + z * (-1.388731625493765e-3f + z * 2.443315711809948e-5f));
  const std::int32_t q = std::int32_t(quarters);
  const float sine = q & 1 ? c : s, cosine = q & 1 ? s : c;
  return {q & 2 ? -sine : sine, (q + 1) & 2 ? -cosine : cosine};
}

// The angles of the pairs of a head, small enough to be an argument of a kernel.
struct Angles {
  static constexpr std::int64_t most = 256;
  float inverse[most];
  std::int64_t pairs;
  float factor;  // of sine and cosine
  LANCET_HD SineCosine at(std::int64_t position, std::int64_t pair) const {
    const SineCosine of_angle = sine_cosine(float(position) * inverse[pair]);
    return {of_angle.sine * factor, of_angle.cosine * factor};
  }
};

// The inverse frequency that YaRN or llama3 makes of `whole`, that of pair `pair`.
inline double scaled_frequency(const ir::Attributes& at, double whole, std::int64_t pair, std::int64_t pairs) {
  const double factor = at.real("factor"), turn = 2 * std::numbers::pi;
  if (at.text("scaling") == "linear") return whole / factor;
  const double original = at.real("original_max_position_embeddings");
  if (at.text("scaling") == "yarn") {
    // The pair whose wavelength turns that many times in the original positions.
    const auto pair_of = [&](double turns) {
      return double(pairs) * std::log(original / (turns * turn)) / std::log(at.real("theta"));
    };
    const double low = std::max(std::floor(pair_of(at.real("beta_fast", 32))), 0.);
    const double high = std::min(std::ceil(pair_of(at.real("beta_slow", 1))), double(2 * pairs - 1));
    const double ramp = std::clamp((double(pair) - low) / (low == high ? 0.001 : high - low), 0., 1.);
    return whole / factor * ramp + whole * (1 - ramp);
  }
  const double low = at.real("low_freq_factor"), high = at.real("high_freq_factor"), turns = original * whole / turn;
  if (turns < low) return whole / factor;
  if (turns > high) return whole;
  const double smooth = (turns - low) / (high - low);
  return (1 - smooth) * whole / factor + smooth * whole;
}

inline Angles angles_of(const ir::Attributes& at) {
  const std::int64_t head_dim = at.integer("head_dim");
  Angles angles{};
  angles.pairs = head_dim / 2;
  const bool yarn = at.has("scaling") && at.text("scaling") == "yarn";
  angles.factor = yarn ? float(at.real("attention_factor", 0.1 * std::log(at.real("factor")) + 1)) : 1.f;
  for (std::int64_t i = 0; i < angles.pairs; ++i) {
    const double whole = std::pow(at.real("theta"), -2. * double(i) / double(head_dim));
    angles.inverse[i] = float(at.has("scaling") ? scaled_frequency(at, whole, i, angles.pairs) : whole);
  }
  return angles;
}

// The heads of a row of qkv: those of queries, of keys and of values. The first two are rotated.
struct PackedHeads {
  std::int64_t queries, keys, head_dim;
  explicit PackedHeads(const ir::Attributes& at)
      : queries(at.integer("heads") * at.integer("group", 1)),
        keys(at.integer("heads")),
        head_dim(at.integer("head_dim")) {}
  LANCET_HD std::int64_t rotated() const { return queries + keys; }
  LANCET_HD std::int64_t width() const { return (queries + 2 * keys) * head_dim; }
  LANCET_HD std::int64_t values() const { return rotated() * head_dim; }  // where they begin
};

}  // namespace lancet::ops
