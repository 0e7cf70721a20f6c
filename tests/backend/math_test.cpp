#include "lancet/base/math.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

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

}  // namespace
}  // namespace lancet
