// What the dense layers ask of the library of products, and the kernels of our own that take the place of an epilogue.
#include <catch2/catch.hpp>
#include <cstring>

#include "emulated_kernels.h"
#include "library_doubles.h"
#include "ops/references/harness.h"

using namespace lancet;
using namespace lancet::test;

namespace {

backend::cuda::MatmulDesc product_of(std::string_view name, const ops::Sample& sample) {
  const ops::OpDef& op = ops::op(name);
  const auto operands = make_operands(sample, SampleRoute(sample, 1), 1);
  HostDevice device;
  HostStream stream;
  const ops::DeviceKernel* kernel = find_emulated_kernel(name);
  products().clear();
  const Outcome outcome =
      run(op, operands, sample.attributes, {kernel->bind, kernel->workspace, 1, {}, &device, &stream});
  CHECK(outcome.faults.empty());
  REQUIRE_FALSE(products().empty());
  return products().back();
}

}  // namespace

TEST_CASE("a part of a dense layer asks for the algorithm of the whole") {
  const ir::Attributes part{{"part", 1}, {"parts", 4}};
  for (const DType t : {DType::f32, DType::bf16}) {
    const ir::TensorType x{t, {2, 8, 24}}, y{t, {2, 8, 16}}, w{t, {16, 24}};
    for (const auto& [op, operands] : {std::pair{"linear", std::vector<ops::SampleOperand>{{x}, {w}}},
                                       std::pair{"linear_gelu", std::vector<ops::SampleOperand>{{x}, {w}}},
                                       std::pair{"linear_dx", std::vector<ops::SampleOperand>{{y}, {w}}},
                                       std::pair{"linear_dx_gelu", std::vector<ops::SampleOperand>{{y}, {w}, {x}}}}) {
      INFO(op << " in " << name(t));
      CHECK(product_of(op, {operands, part}).m == 16);
      CHECK(product_of(op, {operands, part}).parts == 4);
      CHECK(product_of(op, {operands, {}}).parts == 1);
    }
    // A part of a weight gradient has some of the summands, not of the rows.
    CHECK(product_of("linear_dw", {{{y}, {x}}, part}).parts == 1);
  }
}

// GELU in f32 is one of our own, which meets the tolerance of f32.
TEST_CASE("only products in bf16 do the GELU beside them") {
  const auto activation = [](DType t) {
    return product_of("linear_gelu", {{{{t, {2, 8, 24}}}, {{t, {16, 24}}}}, {}}).activation;
  };
  CHECK(activation(DType::f32) == backend::cuda::Activation::none);
  CHECK(activation(DType::bf16) == backend::cuda::Activation::gelu);
}

// Measuring compares the two ways on operands of its own, for a part on those of the whole.
TEST_CASE("kernels in place of an epilogue compute the same on other operands") {
  using namespace backend::cuda;
  int compared = 0;
  on_fused() = [&](MatmulDesc desc, const Unfused& unfused) {
    MatmulDesc plain = unfused.desc;
    if (!desc.trans_a) desc.m *= 2, plain.m *= 2;
    const auto size = std::size_t(desc.m * std::max(desc.n, desc.k) + desc.n * desc.k);
    std::vector<bf16> a(size), b(size);
    for (std::size_t i = 0; i < size; ++i) {
      a[i] = from_f32<bf16>(float(int(i * 7 % 11) - 5) / 8);
      b[i] = from_f32<bf16>(float(int(i * 5 % 13) - 6) / 8);
    }
    // Results of each way: c, row sums and GELU's argument, of which the gradient reads the latter.
    std::vector<float> c[2], sums[2], argument[2];
    HostStream stream;
    std::vector<std::byte> workspace(matmul_workspace_bytes + unfused.own_workspace);
    for (int way = 0; way < 2; ++way) {
      c[way].assign(size, 0.5f), sums[way].assign(size, 0.5f), argument[way].assign(size, 0);
      std::memcpy(argument[way].data(), b.data(), size * sizeof(bf16));
      const MatmulOperands operands{a.data(),      b.data(),         b.data(),
                                    c[way].data(), sums[way].data(), argument[way].data()};
      auto product = make_matmul(way ? plain : desc, operands, stream);
      const MatmulCall call{std::move(*product), desc, operands, &stream, workspace.data()};
      const BindMatmul& bind = way ? unfused.bind : unfused.bind_fused;
      REQUIRE((bind ? bind(call)() : call()).ok());
    }
    const auto near = [&](const std::vector<float>& x, const std::vector<float>& y) {
      for (std::size_t i = 0; i < size; ++i) {
        if (desc.result == DType::f32)
          CHECK(x[i] == Approx(y[i]).margin(1e-4));
        else
          for (int half = 0; half < 2; ++half)
            CHECK(to_f32(reinterpret_cast<const bf16*>(&x[i])[half]) ==
                  Approx(to_f32(reinterpret_cast<const bf16*>(&y[i])[half])).epsilon(0.01).margin(0.01));
      }
    };
    near(c[1], c[0]);
    if (desc.row_sums) near(sums[1], sums[0]);
    near(argument[1], argument[0]);
    ++compared;
  };
  const DType t = DType::bf16;
  const ir::TensorType x{t, {2, 8, 24}}, y{t, {2, 8, 16}}, w{t, {16, 24}};
  product_of("linear_gelu", {{{x}, {w}, {{DType::f32, {16}}}}, {}});
  product_of("linear_dx_gelu", {{{y}, {w}, {x}}, {}});
  const ops::SampleOperand dw{{DType::f32, {16, 24}}}, db{{DType::f32, {16}}};
  product_of("linear_dw", {{{y}, {x}}, {{"bias", 1}}});
  product_of("linear_dw", {{{y}, {x}, dw, db}, {{"bias", 1}}});  // added onto gradients
  on_fused() = nullptr;
  CHECK(compared == 4);
}
