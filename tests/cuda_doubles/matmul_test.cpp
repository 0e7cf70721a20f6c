// Which algorithm a product gets, with a fake cuBLASLt whose proposals, refusals and times are set here.
#include "lancet/backend/cuda/matmul.h"

#include <catch2/catch.hpp>
#include <set>

#include "fake_cublas.h"
#include "fake_runtime.h"
#include "good.h"
#include "lancet/backend/cuda/device.h"
#include "lancet/backend/cuda/matmul_choices.h"

using namespace lancet;
using namespace lancet::backend::cuda;
using test::fake_cublas;
using test::fake_runtime;
using test::FakeProduct;

namespace {

constexpr std::int64_t rows = 64, n = 48, k = 32;

MatmulDesc product(std::int64_t m, std::int64_t parts = 1) {
  MatmulDesc desc;
  desc.m = m, desc.n = n, desc.k = k;
  desc.parts = parts;
  return desc;
}
MatmulDesc with_gelu(std::int64_t m) {
  MatmulDesc desc = product(m);
  desc.activation = Activation::gelu;
  return desc;
}

class Library {
 public:
  Library() {
    fake_runtime() = {};
    fake_runtime().free = std::size_t{1} << 30;
    fake_cublas() = {};
    // The table of choices outlives a test, so each test has a device of its own.
    static int tests = 0;
    fake_runtime().device = ++tests;
    fake_runtime().name = "Test " + std::to_string(tests) + ";";
    stream_ = device_.value()->make_stream(false);
  }
  ~Library() { set_matmul_settings({}); }

  backend::Stream& stream() { return *stream_.value(); }
  MatmulOperands operands() { return {memory_, memory_, nullptr, memory_, nullptr, memory_}; }

  // The algorithm that a product runs by.
  int algorithm(const MatmulDesc& desc) { return algorithm(desc, operands()); }
  int algorithm(const MatmulDesc& desc, const MatmulOperands& operands) {
    auto made = test::good(make_matmul(desc, operands, stream()));
    fake_cublas().calls.clear();
    REQUIRE((*made)->run(stream(), operands, nullptr).ok());
    REQUIRE(fake_cublas().calls.size() == 1);
    CHECK(fake_cublas().calls[0].product.m == desc.m);
    return fake_cublas().calls[0].algorithm;
  }

  // True if the fused product is taken; the other way's own kernel takes `milliseconds`, that beside the fused product
  // `beside`. To bind the other way takes the host long.
  bool fused(const MatmulDesc& desc, float milliseconds, float beside = 0) {
    MatmulDesc plain = desc;
    plain.activation = Activation::none;
    const auto with_kernel = [](float kernel_ms, float host_ms) -> BindMatmul {
      return [=](const MatmulCall& call) {
        fake_runtime().clock_ms += host_ms;
        return [call, kernel_ms]() -> Status {
          fake_runtime().clock_ms += kernel_ms;
          return call();
        };
      };
    };
    Unfused unfused{plain, 256, with_kernel(milliseconds, 100)};
    if (beside > 0) unfused.bind_fused = with_kernel(beside, 0);
    return make_fused_matmul(desc, operands(), stream(), unfused) != nullptr;
  }

 protected:
  alignas(256) std::byte memory_[1024];

 private:
  Result<std::unique_ptr<backend::Device>> device_ = backend::cuda::open_device(0);
  Result<std::unique_ptr<backend::Stream>> stream_ = std::unique_ptr<backend::Stream>();
};

// Like cuBLASLt, proposes other algorithms for other extents.
std::vector<int> by_rows(const FakeProduct& product) {
  return product.m < rows ? std::vector{3, 4} : std::vector{7, 8};
}

}  // namespace

TEST_CASE_METHOD(Library, "a part of a product runs by the algorithm of the whole") {
  fake_cublas().proposals = by_rows;
  CHECK(algorithm(product(rows)) == 7);
  CHECK(algorithm(product(rows / 2)) == 3);
  CHECK(algorithm(product(rows / 2, 2)) == 7);
  CHECK(algorithm(product(rows / 4, 4)) == 7);
}

TEST_CASE_METHOD(Library, "a part for which the whole's algorithm is refused is a product of its own") {
  fake_cublas().proposals = by_rows;
  fake_cublas().accepts = [](const FakeProduct& p, int algorithm) { return algorithm < 7 || p.m >= rows / 2; };
  CHECK(algorithm(product(rows / 2, 2)) == 7);
  CHECK(algorithm(product(rows / 4, 4)) == 3);
}

TEST_CASE_METHOD(Library, "a part is measured as the whole, and the whole finds the part's choice") {
  fake_cublas().proposals = by_rows;
  fake_cublas().milliseconds = [](const FakeProduct&, int algorithm) { return algorithm == 8 ? 1.f : 2.f; };
  set_matmul_settings({.measure = true});
  CHECK(algorithm(product(rows / 2, 2)) == 8);
  CHECK_THAT(matmul_choices(), Catch::Matchers::Contains("bf16[64,48] = bf16[64,32] [32,48] on " + fake_runtime().name +
                                                         ", cuBLASLt 130100, aligned to 16 = 0000000000000008 "));
  set_matmul_settings({});
  CHECK(algorithm(product(rows)) == 8);
  CHECK(algorithm(product(rows / 4, 4)) == 8);
  CHECK(algorithm(product(rows / 2)) == 3);
}

TEST_CASE_METHOD(Library, "algorithms are timed on random operands that change from round to round") {
  fake_cublas().proposals = [](const FakeProduct&) { return std::vector{1, 2}; };
  fake_cublas().milliseconds = [](const FakeProduct&, int) {
    const auto* a = static_cast<const bf16*>(fake_cublas().calls.back().a);
    std::set<float> values;
    for (std::int64_t i = 0; i < rows * k; ++i) values.insert(to_f32(a[i]));
    CHECK(values.size() > 300);
    CHECK(*values.begin() < -2);
    CHECK(*values.rbegin() > 2);
    const std::size_t calls = fake_cublas().calls.size();
    if (calls > 1) CHECK(fake_cublas().calls[calls - 2].a != a);
    return 1.f;
  };
  set_matmul_settings({.measure = true});
  const auto made = test::good(make_matmul(product(rows), operands(), stream()));
  CHECK(fake_cublas().calls.size() == 14);
}

TEST_CASE_METHOD(Library, "a clearly faster algorithm replaces the first proposal, a slightly faster one does not") {
  fake_cublas().proposals = [](const FakeProduct&) { return std::vector{1, 2, 3}; };
  fake_cublas().milliseconds = [](const FakeProduct& p, int algorithm) {
    return algorithm == 1 ? 1.f : algorithm == 2 ? 0.99f : p.m == rows ? 0.97f : 0.985f;
  };
  set_matmul_settings({.measure = true});
  CHECK(algorithm(product(rows)) == 3);
  CHECK(algorithm(product(2 * rows)) == 1);
}

TEST_CASE_METHOD(Library, "choices hold for every alignment of 16 bytes and more") {
  fake_cublas().proposals = by_rows;
  fake_cublas().milliseconds = [](const FakeProduct&, int algorithm) { return algorithm == 8 ? 1.f : 2.f; };
  set_matmul_settings({.measure = true});
  CHECK(algorithm(product(rows)) == 8);
  set_matmul_settings({});
  MatmulOperands shifted = operands();
  shifted.a = memory_ + 16;
  CHECK(algorithm(product(rows), shifted) == 8);
  shifted.a = memory_ + 8;
  CHECK(algorithm(product(rows), shifted) == 7);
}

TEST_CASE_METHOD(Library, "the faster of an epilogue and kernels of one's own is taken, then and later") {
  fake_cublas().milliseconds = [](const FakeProduct& p, int) { return p.epilogue ? 10.f : 4.f; };
  CHECK(fused(with_gelu(rows), 3));  // not measured
  set_matmul_settings({.measure = true});
  CHECK_FALSE(fused(with_gelu(rows), 3));
  CHECK(fused(with_gelu(2 * rows), 7));
  CHECK_FALSE(fused(with_gelu(3 * rows), 7, 2));  // 12 ms against 11
  set_matmul_settings({});
  fake_cublas().calls.clear();
  CHECK_FALSE(fused(with_gelu(rows), 3));
  CHECK(fused(with_gelu(2 * rows), 7));
  CHECK(fake_cublas().calls.empty());
}

TEST_CASE_METHOD(Library, "without memory for scratch operands the first proposal is taken") {
  fake_cublas().proposals = by_rows;
  fake_cublas().milliseconds = [](const FakeProduct&, int algorithm) { return algorithm == 8 ? 1.f : 2.f; };
  fake_runtime().free = 1000;
  set_matmul_settings({.measure = true});
  CHECK(algorithm(product(rows)) == 7);
}
