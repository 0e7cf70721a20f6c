#include <catch2/catch.hpp>
#include <thread>

#include "lancet/backend/cpu/parallel.h"
#include "lancet/base/check.h"
#include "support.h"

namespace lancet::backend::cpu {
namespace {

struct Case {
  MatmulDesc desc;
  std::int64_t pad = 0;  // elements between the rows; NaN in A and B
  MatmulKernel kernel = MatmulKernel::own;
};

std::string describe(const MatmulDesc& d) {
  return fmt::format("{}x{}x{} {}{} {}->{} bias {} accumulate {} strides {} {} {}", d.m, d.n, d.k,
                     d.trans_a ? "T" : "N", d.trans_b ? "T" : "N", name(d.a), name(d.c),
                     d.bias ? name(*d.bias) : "none", d.accumulate, d.lda, d.ldb, d.ldc);
}

void poison_padding(Elements& e, std::int64_t rows, std::int64_t width, std::int64_t stride) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t j = width; j < stride; ++j) e.set(r * stride + j, kPoison);
}

// Runs the product and compares every element with a sum in double; the padding between C's rows must stay unchanged.
void check_product(Case c) {
  MatmulDesc& d = c.desc;
  const std::int64_t rows_a = d.trans_a ? d.k : d.m, row_a = d.trans_a ? d.m : d.k;
  const std::int64_t rows_b = d.trans_b ? d.n : d.k, row_b = d.trans_b ? d.k : d.n;
  d.lda = c.pad ? row_a + c.pad : 0, d.ldb = c.pad ? row_b + 2 * c.pad : 0, d.ldc = c.pad ? d.n + 3 * c.pad : 0;
  const std::int64_t lda = row_a + c.pad, ldb = row_b + 2 * c.pad, ldc = d.n + 3 * c.pad;
  Elements a = Elements::random(rows_a * lda, d.a, 1), b = Elements::random(rows_b * ldb, d.b, 2);
  Elements out = Elements::random(d.m * ldc, d.c, 3), bias = Elements::random(d.n, d.bias.value_or(DType::f32), 4);
  poison_padding(a, rows_a, row_a, lda);
  poison_padding(b, rows_b, row_b, ldb);
  const Elements before = out;
  auto product = make_matmul(d, c.kernel);
  product->run(a.data(), b.data(), d.bias ? bias.data() : nullptr, out.data());

  INFO(describe(d) << " by " << (c.kernel == MatmulKernel::own ? "the own kernel" : "oneDNN"));
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < d.m; ++i)
    for (std::int64_t j = 0; j < ldc; ++j) {
      const double got = out[i * ldc + j];
      if (j >= d.n) {
        wrong += got != before[i * ldc + j];
        continue;
      }
      double want = 0, magnitude = 0;
      auto add = [&](double x) { want += x, magnitude += std::fabs(x); };
      if (d.accumulate) add(before[i * ldc + j]);
      if (d.bias) add(bias[j]);
      for (std::int64_t p = 0; p < d.k; ++p)
        add((d.trans_a ? a[p * lda + i] : a[i * lda + p]) * (d.trans_b ? b[j * ldb + p] : b[p * ldb + j]));
      wrong += !(std::fabs(got - want) <= tolerance(d.k, magnitude, want, d.c));
    }
  CHECK(wrong == 0);
}

struct Types {
  DType operands, result;
};
const Types kTypes[] = {{DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}};

struct Extents {
  std::int64_t m, n, k;
};

TEST_CASE("products of odd sizes agree with sums in double") {
  set_threads(2);
  const Extents sizes[] = {{1, 1, 1},   {1, 37, 5},    {29, 1, 7},  {13, 17, 1}, {2, 32, 16},  {14, 64, 31},
                           {15, 33, 2}, {31, 101, 67}, {97, 48, 3}, {5, 7, 0},   {64, 129, 33}};
  for (Types t : kTypes)
    for (Extents e : sizes)
      for (int layout = 0; layout < 4; ++layout)
        for (std::int64_t pad : {0, 1}) {
          MatmulDesc d{e.m,      e.n, e.k,  (layout & 1) != 0, (layout & 2) != 0, 0, 0, 0, t.operands, t.operands,
                       t.result, {},  false};
          for (MatmulKernel kernel : kKernels) check_product({d, pad, kernel});
        }
}

TEST_CASE("results in bf16 round to nearest even") {
  set_threads(1);
  constexpr std::int64_t n = 100;
  const bf16 a = from_f32<bf16>(1.0078125f);  // 1 + 2^-7: products have one bit more than bf16, so half of them tie
  std::vector<bf16> b(n), c(n);
  for (std::int64_t j = 0; j < n; ++j) b[std::size_t(j)] = from_f32<bf16>(1.f + float(j) * 0x1p-7f);
  b[3] = from_f32<bf16>(std::numeric_limits<float>::infinity());
  b[7] = from_f32<bf16>(std::numeric_limits<float>::max());
  b[8] = from_f32<bf16>(-1.0078125f);
  MatmulDesc d;
  d.m = 1, d.n = n, d.k = 1;
  d.a = d.b = d.c = DType::bf16;
  make_matmul(d, MatmulKernel::own)->run(&a, b.data(), nullptr, c.data());
  for (std::size_t j = 0; j < n; ++j) CHECK(c[j].bits == from_f32<bf16>(to_f32(a) * to_f32(b[j])).bits);
}

TEST_CASE("bias and accumulation in all combinations") {
  set_threads(2);
  const std::optional<DType> biases[] = {std::nullopt, DType::f32, DType::bf16};
  for (Types t : kTypes)
    for (auto bias : biases)
      for (bool accumulate : {false, true})
        for (Extents e : {Extents{1, 1, 1}, Extents{30, 45, 19}, Extents{16, 64, 0}}) {
          for (MatmulKernel kernel : kKernels)
            for (bool turned : {false, true})
              check_product(
                  {{e.m, e.n, e.k, turned, !turned, 0, 0, 0, t.operands, t.operands, t.result, bias, accumulate},
                   turned ? 0 : 2,
                   kernel});
        }
}

// Larger than one block in m, n and k, each in turn, which covers the loops around the tiles.
TEST_CASE("products of several blocks") {
  set_threads(2);
  for (Types t : kTypes)
    for (bool accumulate : {false, true})
      for (Extents e : {Extents{3, 5, 2311}, Extents{7, 1301, 9}, Extents{1607, 3, 11}, Extents{61, 70, 1601}})
        for (int layout : {0, 1, 2}) {
          MatmulDesc d{e.m, e.n,        e.k,        layout == 1, layout == 2, 0,         0,
                       0,   t.operands, t.operands, t.result,    {},          accumulate};
          check_product({d, layout == 0});
        }
}

// The header promises the same bits for a row alone, in parts, in the whole, on one thread and on several.
TEST_CASE("a row's bits do not depend on the rows around it or on the threads") {
  for (Types t : kTypes)
    for (bool trans_b : {false, true}) {
      const std::int64_t m = 96, n = 320, k = 515;
      Elements a = Elements::random(m * k, t.operands, 5), b = Elements::random(n * k, t.operands, 6);
      Elements bias = Elements::random(n, DType::f32, 7), whole(m * n, t.result);
      MatmulDesc d{m, n, k, false, trans_b, 0, 0, 0, t.operands, t.operands, t.result, DType::f32, false};
      set_threads(1);
      make_matmul(d, MatmulKernel::own)->run(a.data(), b.data(), bias.data(), whole.data());
      for (int count : {1, 2, 3})
        for (std::int64_t parts : {1, 2, 8, 96}) {
          INFO(describe(d) << " threads " << count << " parts " << parts);
          set_threads(count);
          Elements out(m * n, t.result);
          d.m = m / parts;
          auto product = make_matmul(d, MatmulKernel::own);
          for (std::int64_t p = 0; p < parts; ++p)
            product->run(a.at(p * d.m * k), b.data(), bias.data(), out.at(p * d.m * n));
          CHECK(same_bits(out, whole));
          d.m = m;
        }
    }
}

// A weight gradient summed over parts of the batch is the gradient of the whole, bit for bit, since accumulating
// continues the sum (parts of an even number of rows: bf16 is summed in pairs).
TEST_CASE("a product runs again on other data, from other threads and with other thread counts") {
  for (MatmulKernel kernel : kKernels)
    for (DType type : {DType::f32, DType::bf16}) {
      constexpr std::int64_t m = 70, n = 130, k = 33;
      MatmulDesc d;
      d.m = m, d.n = n, d.k = k, d.trans_b = true;
      d.a = d.b = type;
      d.bias = DType::f32;
      const auto product = make_matmul(d, kernel);
      std::uint64_t round = 0;
      for (int count : {1, 3, 2, 1, 3}) {
        Elements a = Elements::random(m * k, type, ++round), b = Elements::random(n * k, type, ++round),
                 bias = Elements::random(n, DType::f32, ++round);
        Elements c(m * n, DType::f32);
        std::thread([&] {
          set_threads(count);
          product->run(a.data(), b.data(), bias.data(), c.data());
        }).join();
        int wrong = 0;
        for (std::int64_t i = 0; i < m; ++i)
          for (std::int64_t j = 0; j < n; ++j) {
            double want = bias[j], magnitude = std::fabs(want);
            for (std::int64_t p = 0; p < k; ++p) {
              const double term = double(a[i * k + p]) * double(b[j * k + p]);
              want += term, magnitude += std::fabs(term);
            }
            wrong += !(std::fabs(c[i * n + j] - want) <= tolerance(k, magnitude, want, DType::f32));
          }
        INFO(name(type) << " threads " << count);
        CHECK(wrong == 0);
      }
    }
}

TEST_CASE("accumulating over parts of k continues the sum") {
  set_threads(2);
  for (DType type : {DType::f32, DType::bf16}) {
    const std::int64_t m = 45, n = 70, k = 640;
    Elements a = Elements::random(k * m, type, 8), b = Elements::random(k * n, type, 9);
    Elements whole(m * n, DType::f32), parts(m * n, DType::f32);
    MatmulDesc d{m, n, k, true, false, 0, 0, 0, type, type, DType::f32, {}, false};
    make_matmul(d, MatmulKernel::own)->run(a.data(), b.data(), nullptr, whole.data());
    for (std::int64_t p = 0; p < 4; ++p) {
      d.k = k / 4;
      d.accumulate = p > 0;
      make_matmul(d, MatmulKernel::own)->run(a.at(p * d.k * m), b.at(p * d.k * n), nullptr, parts.data());
    }
    CHECK(same_bits(parts, whole));
  }
}

TEST_CASE("descriptions that no kernel covers are refused") {
  CHECK_THROWS_AS(make_matmul({4, 4, 4, false, false, 0, 0, 0, DType::f32, DType::bf16, DType::f32, {}, false}),
                  InternalError);
  CHECK_THROWS_AS(make_matmul({4, 4, 4, false, false, 3, 0, 0, DType::f32, DType::f32, DType::f32, {}, false}),
                  InternalError);
  CHECK_THROWS_AS(make_matmul({4, 4, 4, false, false, 0, 0, 0, DType::f32, DType::f32, DType::f32, DType::i32, false}),
                  InternalError);
}

}  // namespace
}  // namespace lancet::backend::cpu
