// Products of experts: values against sums in double, and no access outside the given rows. Operand rows of other
// experts hold NaN, so that reading one shows in the result; rows of C of other experts must keep their bits.
#include <catch2/catch.hpp>

#include "lancet/backend/cpu/parallel.h"
#include "lancet/base/check.h"
#include "support.h"

namespace lancet::backend::cpu {
namespace {

struct Rows {
  std::vector<std::int64_t> begin, end;
};

// Row ranges at distances of `capacity`, filled as given: the layout of the expert buffer.
Rows filled(const std::vector<std::int64_t>& counts, std::int64_t capacity) {
  Rows r;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    r.begin.push_back(static_cast<std::int64_t>(i) * capacity);
    r.end.push_back(static_cast<std::int64_t>(i) * capacity + counts[i]);
  }
  return r;
}

bool inside(const Rows& rows, std::int64_t row) {
  for (std::size_t i = 0; i < rows.begin.size(); ++i)
    if (row >= rows.begin[i] && row < rows.end[i]) return true;
  return false;
}

void poison_outside(const Rows& rows, Elements& e, std::int64_t total, std::int64_t width) {
  for (std::int64_t r = 0; r < total; ++r)
    if (!inside(rows, r))
      for (std::int64_t j = 0; j < width; ++j) e.set(r * width + j, kPoison);
}

struct GroupedTypes {
  DType operands, result;
};

void check_rows(const Rows& rows, std::int64_t total, GroupedMatmulDesc d, MatmulKernel kernel) {
  const MatmulDesc& p = d.product;
  Elements a = Elements::random(total * p.k, p.a, 1), b = Elements::random(d.groups * p.k * p.n, p.b, 2);
  Elements bias = Elements::random(d.groups * p.n, p.bias.value_or(DType::f32), 3);
  Elements c = Elements::random(total * p.n, p.c, 4);
  poison_outside(rows, a, total, p.k);
  const Elements before = c;
  make_grouped_matmul(d, kernel)->run(rows.begin, rows.end, a.data(), b.data(), p.bias ? bias.data() : nullptr,
                                      c.data());
  std::int64_t wrong = 0, touched = 0;
  for (std::int64_t r = 0; r < total; ++r)
    for (std::int64_t j = 0; j < p.n; ++j)
      if (!inside(rows, r)) touched += c[r * p.n + j] != before[r * p.n + j];
  for (std::size_t s = 0; s < rows.begin.size(); ++s) {
    const std::int64_t g = static_cast<std::int64_t>(s) / d.segments;
    for (std::int64_t r = rows.begin[s]; r < rows.end[s]; ++r)
      for (std::int64_t j = 0; j < p.n; ++j) {
        double want = 0, magnitude = 0;
        auto add = [&](double x) { want += x, magnitude += std::fabs(x); };
        if (p.accumulate) add(before[r * p.n + j]);
        if (p.bias) add(bias[g * p.n + j]);
        for (std::int64_t k = 0; k < p.k; ++k)
          add(a[r * p.k + k] * b[g * p.k * p.n + (p.trans_b ? j * p.k + k : k * p.n + j)]);
        wrong += !(std::fabs(c[r * p.n + j] - want) <= tolerance(p.k, magnitude, want, p.c));
      }
  }
  CHECK(wrong == 0);
  CHECK(touched == 0);
}

void check_reduction(const Rows& rows, std::int64_t total, GroupedMatmulDesc d, MatmulKernel kernel) {
  const MatmulDesc& p = d.product;
  Elements a = Elements::random(total * p.m, p.a, 5), b = Elements::random(total * p.n, p.b, 6);
  Elements c = Elements::random(d.groups * p.m * p.n, p.c, 7);
  poison_outside(rows, a, total, p.m);
  poison_outside(rows, b, total, p.n);
  const Elements before = c;
  make_grouped_matmul(d, kernel)->run(rows.begin, rows.end, a.data(), b.data(), nullptr, c.data());
  std::int64_t wrong = 0;
  for (std::int64_t g = 0; g < d.groups; ++g)
    for (std::int64_t i = 0; i < p.m; ++i)
      for (std::int64_t j = 0; j < p.n; ++j) {
        const std::int64_t at = (g * p.m + i) * p.n + j;
        std::int64_t terms = 0;
        double want = 0, magnitude = 0;
        auto add = [&](double x) { want += x, magnitude += std::fabs(x), ++terms; };
        if (p.accumulate) add(before[at]);
        for (std::int64_t s = g * d.segments; s < (g + 1) * d.segments; ++s)
          for (std::int64_t r = rows.begin[std::size_t(s)]; r < rows.end[std::size_t(s)]; ++r)
            add(a[r * p.m + i] * b[r * p.n + j]);
        wrong += !(std::fabs(c[at] - want) <= tolerance(terms, magnitude, want, p.c));
      }
  CHECK(wrong == 0);
}

TEST_CASE("grouped products compute the filled rows and leave all others unchanged") {
  const std::vector<std::vector<std::int64_t>> fills = {{0, 0, 0, 0},     {40, 0, 0, 0},    {0, 0, 0, 40}, {1, 2, 3, 4},
                                                        {13, 14, 15, 40}, {40, 40, 40, 40}, {0, 29, 0, 1}};
  for (int count : {1, 2, 3})
    for (const auto& fill : fills)
      for (std::int64_t segments : {1, 2}) {
        set_threads(count);
        const Rows rows = filled(fill, 40);
        const std::int64_t groups = 4 / segments;
        INFO("threads " << count << " rows " << fill[0] << " " << fill[1] << " " << fill[2] << " " << fill[3]
                        << " segments " << segments);
        for (GroupedTypes t : {GroupedTypes{DType::f32, DType::f32}, GroupedTypes{DType::bf16, DType::bf16}}) {
          GroupedMatmulDesc d;
          d.groups = groups;
          d.segments = segments;
          d.product = {0, 67, 35, false, true, 0, 0, 0, t.operands, t.operands, t.result, t.operands, false};
          for (MatmulKernel kernel : kKernels) check_rows(rows, 160, d, kernel);
          d.product.trans_b = false;
          d.product.bias.reset();
          for (MatmulKernel kernel : kKernels) check_rows(rows, 160, d, kernel);
        }
        for (DType type : {DType::f32, DType::bf16})
          for (bool accumulate : {false, true}) {
            GroupedMatmulDesc d;
            d.rows = GroupedRows::k;
            d.groups = groups;
            d.segments = segments;
            d.product = {31, 37, 0, true, false, 0, 0, 0, type, type, DType::f32, {}, accumulate};
            for (MatmulKernel kernel : kKernels) check_reduction(rows, 160, d, kernel);
          }
      }
}

// Many rows of one expert: the product has several blocks, like the dense product.
TEST_CASE("a grouped product of one group is the dense product, bit for bit") {
  set_threads(2);
  const std::int64_t m = 300, n = 96, k = 800;
  Elements a = Elements::random(m * k, DType::bf16, 1), b = Elements::random(n * k, DType::bf16, 2);
  Elements dense(m * n, DType::bf16), grouped(m * n, DType::bf16);
  const MatmulDesc p{m, n, k, false, true, 0, 0, 0, DType::bf16, DType::bf16, DType::bf16, {}, false};
  make_matmul(p, MatmulKernel::own)->run(a.data(), b.data(), nullptr, dense.data());
  GroupedMatmulDesc d;
  d.groups = 1;
  d.segments = 3;
  d.product = p;
  const std::vector<std::int64_t> begin = {0, 101, 102}, end = {101, 102, m};
  make_grouped_matmul(d, MatmulKernel::own)->run(begin, end, a.data(), b.data(), nullptr, grouped.data());
  CHECK(same_bits(dense, grouped));
}

TEST_CASE("grouped products refuse row lists of the wrong length") {
  GroupedMatmulDesc d;
  d.groups = 2;
  d.product = {0, 4, 4, false, true, 0, 0, 0, DType::f32, DType::f32, DType::f32, {}, false};
  const std::vector<std::int64_t> one = {0};
  Elements x(64, DType::f32);
  CHECK_THROWS_AS(make_grouped_matmul(d)->run(one, one, x.data(), x.data(), nullptr, x.data()), InternalError);
}

}  // namespace
}  // namespace lancet::backend::cpu
