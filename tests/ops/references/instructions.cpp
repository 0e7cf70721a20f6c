// The layouts are those of the PTX ISA's sections on mma.m16n8k16, ldmatrix, cp.async, cvt, ex2, shfl, atom, st, red
// and ld, in its own terms.
#include "ops/references/instructions.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>

namespace lancet::test {
namespace {

float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }
double of_bf16(std::uint32_t bits) { return double(float_of(bits << 16)); }

// To the nearest value with 8 significant bits, of two equally near the even one; NaN is 0x7fff.
std::uint32_t to_bf16(double x) {
  if (std::isnan(x)) return 0x7fff;
  const int exponent = x == 0 || std::isinf(x) ? 0 : std::max(std::ilogb(x), -126);
  const double unit = std::ldexp(1.0, exponent - 7);
  return std::bit_cast<std::uint32_t>(float(std::nearbyint(x / unit) * unit)) >> 16;  // beyond the largest: infinity
}

struct Product {
  double a[16][16], b[16][8], c[16][8];  // row, column
};

// The matrices of a warp, from its first thread's registers on.
Product matrices(const Instructions& from, int first) {
  Product m{};
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane >> 2, in_group = lane % 4;
    for (int i = 0; i < 8; ++i) {
      const int row = i < 2 || (4 <= i && i < 6) ? group : group + 8;
      const int column = in_group * 2 + (i & 1) + (i < 4 ? 0 : 8);
      m.a[row][column] = of_bf16(from.a[first + lane][i / 2] >> (i % 2 * 16) & 0xffff);
    }
    for (int i = 0; i < 4; ++i) {
      const int row = in_group * 2 + (i & 1) + (i < 2 ? 0 : 8);
      m.b[row][group] = of_bf16(from.b[first + lane][i / 2] >> (i % 2 * 16) & 0xffff);
      m.c[i < 2 ? group : group + 8][in_group * 2 + (i & 1)] = double(from.c[first + lane][i]);
    }
  }
  return m;
}

class Faults {
 public:
  std::vector<std::string> found;
  template <class T>
  void expect(const char* what, int i, int e, T expected, T result) {
    if (result != expected)
      found.push_back(fmt::format("{} {}.{}: expected {}, found {}", what, i, e, expected, result));
  }
  void expect_near(const char* what, int i, int e, double expected, double result, double bound) {
    if (std::isnan(expected) ? std::isnan(result) : result == expected) return;
    if (std::isfinite(expected) && std::abs(result - expected) <= bound) return;
    found.push_back(fmt::format("{} {}.{}: expected {} within {}, found {}", what, i, e, expected, bound, result));
  }
};

// Tensor cores align the products of an element to the largest and may drop bits below 2^-23 of it, per term.
void check_products(const Instructions& given, const Instructions& found, Faults& faults) {
  for (int warp = 0; warp < Instructions::warps; ++warp) {
    const Product m = matrices(given, 32 * warp), d = matrices(found, 32 * warp);
    for (int row = 0; row < 16; ++row)
      for (int column = 0; column < 8; ++column) {
        double sum = m.c[row][column], size = std::abs(sum);
        for (int k = 0; k < 16; ++k) {
          sum += m.a[row][k] * m.b[k][column];
          size += std::abs(m.a[row][k] * m.b[k][column]);
        }
        faults.expect_near(warp == 0 ? "mma, exact" : "mma", row, column, sum, d.c[row][column],
                           warp == 0 ? 0 : 17 * 0x1p-23 * size);
      }
  }
}

// Thread 8i + r of the warp gives row r of matrix i.
void check_matrices(const Instructions& given, const Instructions& found, Faults& faults) {
  for (int t = 0; t < Instructions::threads; ++t)
    for (int i = 0; i < 4; ++i) {
      const int warp = t / 32, lane = t % 32;
      const auto element = [&](int row, int column) {
        return std::uint32_t(given.matrix[warp][given.row[warp * 32 + 8 * i + row]][column]);
      };
      const int group = lane / 4, pair = lane % 4 * 2;
      faults.expect("ldmatrix", t, i, element(group, pair) | element(group, pair + 1) << 16, found.plain[t][i]);
      faults.expect("ldmatrix.trans", t, i, element(pair, group) | element(pair + 1, group) << 16,
                    found.transposed[t][i]);
    }
}

void check_conversions(const Instructions& given, const Instructions& found, Faults& faults) {
  for (int i = 0; i < Instructions::values; ++i) {
    const std::uint32_t lower = to_bf16(double(float_of(given.x[i]))), upper = to_bf16(double(float_of(given.y[i])));
    faults.expect("cvt", i, 0, lower | upper << 16, found.pair[i]);
    // 2 units in the last place, and the rounding of x log2(e); results below 2^-126 are 0.
    const double x = double(given.exponent[i]),
                 power = x > 88.73 ? std::numeric_limits<double>::infinity() : std::exp(x);
    faults.expect_near("e^x", i, 0, power, double(found.power[i]),
                       power < 0x1p-126 ? power : power * (2.5e-7 + 7.3e-8 * std::abs(x)));
    const double quotient = double(given.dividend[i]) / double(given.divisor[i]);
    faults.expect_near("a / b", i, 0, quotient, double(found.quotient[i]), 0x1p-22 * std::abs(quotient));
  }
}

void check_threads(const Instructions& given, const Instructions& found, Faults& faults) {
  std::int32_t sum = 0, most = 0;
  std::vector<std::pair<std::int32_t, std::int32_t>> additions;  // value before, and the number added
  for (int t = 0; t < Instructions::threads; ++t) {
    const int warp = t / 32 * 32, lane = t % 32;
    for (int i = 0; i < Instructions::copies; ++i)
      for (int e = 0; e < 4; ++e)
        faults.expect("cp.async", t, i, given.there[i][t] ? given.source[i][t][e] : 0u, found.arrived[i][t][e]);
    faults.expect("shfl.idx", t, 0, given.number[warp + given.from[t]], found.shuffled[t]);
    faults.expect("shfl.bfly", t, 0, given.number[warp + (lane ^ given.distance)], found.mixed[t]);
    faults.expect("shfl.up", t, 0, given.number[lane < given.distance ? t : t - given.distance], found.upper[t]);
    faults.expect("st.release", t, 0, std::uint32_t(given.number[t]), found.set[t]);
    faults.expect("ld.acquire", t, 0, std::uint32_t(given.number[t]), found.loaded[t]);
    additions.push_back({found.before[t], given.number[t]});
    sum += given.number[t], most = std::max(most, given.number[t]);
  }
  std::ranges::sort(additions);  // of some order of the threads
  std::int32_t before = 0;
  for (const auto& [value, number] : additions) {
    faults.expect("atom.add, before", number, 0, before, value);
    before += number;
  }
  faults.expect("atom.add", 0, 0, sum, found.sum);
  faults.expect("atom.max", 0, 0, most, found.maximum);
  faults.expect("red.release.add", 0, 0, given.counted + std::uint32_t(sum), found.counted);
  faults.expect("a wait for a word that has passed", 0, 0, 1, found.reached);
  faults.expect("a wait that is stopped", 0, 0, 1, found.stopped);
}

}  // namespace

Instructions instruction_operands(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto bits = [&] { return std::uint32_t(random()); };
  const auto below = [&](int n) { return int(random() % std::uint64_t(n)); };
  const auto real = [&](double low, double high) { return low + (high - low) * double(random() >> 11) * 0x1p-53; };
  Instructions io;
  std::memset(static_cast<void*>(&io), 0xee, sizeof io);
  for (int t = 0; t < io.threads; ++t) {
    const auto element = [&] { return to_bf16(t < 32 ? below(17) - 8 : real(-2, 2)); };
    for (auto& pair : io.a[t]) pair = element() | element() << 16;
    for (auto& pair : io.b[t]) pair = element() | element() << 16;
    for (float& c : io.c[t]) c = t < 32 ? float(below(2001) - 1000) : float(real(-4, 4));
    io.row[t] = t % 32 * 2 + below(2);  // shuffled below
    io.number[t] = 1 + below(1000000);
    io.from[t] = below(32);
    for (int i = 0; i < io.copies; ++i) {
      io.there[i][t] = below(3) > 0;
      for (auto& word : io.source[i][t]) word = bits();
    }
  }
  for (int warp = 0; warp < io.warps; ++warp) {
    std::shuffle(io.row + 32 * warp, io.row + 32 * warp + 32, random);
    for (auto& row : io.matrix[warp])
      for (auto& bits : row) bits = std::uint16_t(random());
  }
  for (int i = 0; i < io.values; ++i) {
    io.x[i] = bits();
    io.y[i] = i % 2 ? bits() : (bits() & 0xffff0000u) | 0x8000u;  // half way
    io.exponent[i] = float(real(-87, 88));
    io.dividend[i] = float(std::ldexp(real(-2, 2), below(60) - 30));
    io.divisor[i] = float(std::ldexp(real(1, 2), below(60) - 30)) * (below(2) ? 1.f : -1.f);
  }
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const std::uint32_t floats[] = {0x7f7fffff, 0x7f800000, 0xff800001, 0x80000001, 0x00008000, 0x80000000};
  std::ranges::copy(floats, io.x);
  const float exponents[] = {0.f, -0.f, 100.f, -100.f, infinity, -infinity, std::nanf(""), 0x1p-140f};
  std::ranges::copy(exponents, io.exponent);
  io.distance = 1 << below(5);
  io.counted = 7, io.stop = 1;
  io.target = 0xfffffff0u, io.ahead = 5, io.behind = 0xffffff00u;
  return io;
}

std::vector<std::string> instruction_faults(const Instructions& given, const Instructions& found) {
  Faults faults;
  check_products(given, found, faults);
  check_matrices(given, found, faults);
  check_conversions(given, found, faults);
  check_threads(given, found, faults);
  return faults.found;
}

}  // namespace lancet::test
