#include "lancet/base/math.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "lancet/backend/cpu/vector_math.h"
#include "support.h"

namespace lancet {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class F, class G>
double worst_relative(float from, float to, F f, G exact) {
  double worst = 0;
  const int steps = 200000;
  for (int i = 0; i <= steps; ++i) {
    const float x = from + (to - from) * (static_cast<float>(i) / steps);
    const double want = exact(static_cast<double>(x));
    if (want != 0) worst = std::max(worst, std::fabs(f(x) - want) / std::fabs(want));
  }
  return worst;
}

TEST_CASE("exp_f32") {
  const auto f = [](float x) { return exp_f32(x); };
  const auto exact = [](double x) { return std::exp(x); };
  CHECK(worst_relative(-87.2f, 88.2f, f, exact) < 2.5e-7);
  CHECK(worst_relative(-1.f, 1.f, f, exact) < 2.5e-7);
  CHECK(exp_f32(0.f) == 1.f);
  CHECK(exp_f32(-88.f) == 0.f);
  CHECK(exp_f32(-kInfinity) == 0.f);
  CHECK(exp_f32(89.f) == kInfinity);
  CHECK(exp_f32(kInfinity) == kInfinity);
  CHECK(std::isnan(exp_f32(NAN)));
}

TEST_CASE("tanh_f32") {
  const auto f = [](float x) { return tanh_f32(x); };
  const auto exact = [](double x) { return std::tanh(x); };
  CHECK(worst_relative(-10.f, 10.f, f, exact) < 2.5e-7);
  CHECK(worst_relative(-0.7f, 0.7f, f, exact) < 2.5e-7);
  CHECK(worst_relative(1e-8f, 1e-3f, f, exact) < 2.5e-7);
  CHECK(tanh_f32(0.f) == 0.f);
  CHECK(tanh_f32(kInfinity) == 1.f);
  CHECK(tanh_f32(-50.f) == -1.f);
  CHECK(std::isnan(tanh_f32(NAN)));
}

TEST_CASE("log_f32") {
  const auto f = [](float x) { return log_f32(x); };
  const auto exact = [](double x) { return std::log(x); };
  CHECK(worst_relative(0.001f, 0.999f, f, exact) < 2.5e-7);
  CHECK(worst_relative(1.0001f, 3.f, f, exact) < 2.5e-7);
  CHECK(worst_relative(3.f, 1e30f, f, exact) < 2.5e-7);
  CHECK(worst_relative(1.2e-38f, 1e-30f, f, exact) < 2.5e-7);
  CHECK(log_f32(1.f) == 0.f);
  CHECK(log_f32(0.f) == -kInfinity);
  CHECK(log_f32(kInfinity) == kInfinity);
  CHECK(std::isnan(log_f32(-1.f)));
  CHECK(std::isnan(log_f32(NAN)));
}

TEST_CASE("sigmoid_f32") {
  const auto f = [](float x) { return sigmoid_f32(x); };
  const auto exact = [](double x) { return 1 / (1 + std::exp(-x)); };
  CHECK(worst_relative(-80.f, 80.f, f, exact) < 3.5e-7);
  CHECK(sigmoid_f32(-kInfinity) == 0.f);
  CHECK(sigmoid_f32(kInfinity) == 1.f);
}

// Vectors and single elements must round alike, at any length.
TEST_CASE("conversion of arrays is conversion of elements") {
  for (std::int64_t n : {0, 1, 15, 16, 17, 100}) {
    std::vector<float> in(static_cast<std::size_t>(n)), back(in.size());
    std::vector<bf16> out(in.size());
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = Philox(1, 2).normal(i) * (i % 3 ? 1e-3f : 1e20f);
    if (n > 20) in[3] = kInfinity, in[5] = -0.f, in[7] = 1.00390625f, in[8] = 1.01171875f, in[9] = 3.4e38f;  // halves
    backend::cpu::convert(in.data(), out.data(), n);
    backend::cpu::convert(out.data(), back.data(), n);
    for (std::size_t i = 0; i < in.size(); ++i) {
      CHECK(out[i].bits == from_f32<bf16>(in[i]).bits);
      CHECK(back[i] == to_f32(out[i]));
    }
  }
  std::vector<float> nan(16, NAN);
  std::vector<bf16> out(16);
  backend::cpu::convert(nan.data(), out.data(), 16);
  for (bf16 x : out) CHECK(std::isnan(to_f32(x)));
}

}  // namespace
}  // namespace lancet
