// Doubles of CUDA's libraries on the host: products by the CPU's kernels, and no attention, so that the project's own
// kernels are tested; or, for tests of what is launched, products and attentions that only say that they were called.
#include "library_doubles.h"

#include <algorithm>

#include "lancet/backend/cpu/matmul.h"
#include "lancet/backend/cuda/attention.h"
#include "lancet/backend/cuda/matmul.h"
#include "ops/moe/expert_linear/bind_product.h"
#include "ops/nn/gelu/math.h"

namespace lancet::test {
std::vector<backend::cuda::MatmulDesc>& products() {
  static thread_local std::vector<backend::cuda::MatmulDesc> made;
  return made;
}
std::function<void(const backend::cuda::MatmulDesc&, const backend::cuda::Unfused&)>& on_fused() {
  static std::function<void(const backend::cuda::MatmulDesc&, const backend::cuda::Unfused&)> call;
  return call;
}
std::function<void()>& on_library_call() {
  static std::function<void()> call;
  return call;
}
std::function<void(const backend::cuda::AttentionTensors&)>& on_attention() {
  static std::function<void(const backend::cuda::AttentionTensors&)> call;
  return call;
}
}  // namespace lancet::test

namespace lancet::ops::device {
// wgmma has no double.
Kernel bind_warpgroup_product(const KernelArgs&, ExpertProduct, Epilogue, const GroupedOperands<bf16>&) { return {}; }
}  // namespace lancet::ops::device

namespace lancet::backend::cuda {
namespace {

cpu::MatmulDesc of_cpu(const MatmulDesc& desc) {
  cpu::MatmulDesc c;
  c.m = desc.m, c.n = desc.n, c.k = desc.k;
  c.trans_a = desc.trans_a, c.trans_b = desc.trans_b;
  c.a = c.b = desc.operands;
  c.c = desc.result;
  if (desc.bias) c.bias = desc.result;
  c.accumulate = desc.accumulate;
  return c;
}

Status called() {
  test::on_library_call()();
  return {};
}

class Double : public Matmul {
 public:
  explicit Double(const MatmulDesc& desc)
      : desc_(desc), matmul_(test::on_library_call() ? nullptr : cpu::make_matmul(of_cpu(desc))) {}

  Status run(Stream&, const MatmulOperands& operands, std::byte* workspace) override {
    if (!matmul_) return called();
    std::fill_n(workspace, matmul_workspace_bytes, std::byte{0x5a});  // cuBLASLt's workspace
    matmul_->run(operands.a, operands.b, operands.bias, operands.c);
    if (desc_.activation != Activation::none)
      activate(static_cast<bf16*>(operands.c), static_cast<bf16*>(operands.argument));
    for (std::int64_t i = 0; desc_.row_sums && i < desc_.m; ++i) {
      float sum = 0;
      for (std::int64_t k = 0; k < desc_.k; ++k) sum += to_f32(static_cast<const bf16*>(operands.a)[k * desc_.m + i]);
      static_cast<float*>(operands.row_sums)[i] = sum;
    }
    return {};
  }

 private:
  void activate(bf16* c, bf16* argument) const {
    for (std::int64_t i = 0; i < desc_.m * desc_.n; ++i) {
      if (desc_.activation == Activation::gelu) {
        argument[i] = c[i];
        c[i] = from_f32<bf16>(ops::gelu(to_f32(c[i])));
      } else {
        c[i] = from_f32<bf16>(to_f32(c[i]) * ops::gelu_slope(to_f32(argument[i])));
      }
    }
  }

  MatmulDesc desc_;
  std::unique_ptr<cpu::Matmul> matmul_;
};

class CalledAttention : public Attention {
 public:
  std::size_t workspace_bytes() const override { return 0; }
  Status run(Stream&, const AttentionTensors& tensors, std::byte*) override {
    if (!test::on_attention()) return called();
    test::on_attention()(tensors);
    return {};
  }
};

}  // namespace

Result<std::unique_ptr<Matmul>> make_matmul(const MatmulDesc& desc, const MatmulOperands&, Stream&) {
  test::products().push_back(desc);
  return std::unique_ptr<Matmul>(new Double(desc));
}

// None in f32, so that both ways to a bias gradient are tested, nor for GELU over rows that cuBLASLt does not support.
std::unique_ptr<Matmul> make_fused_matmul(const MatmulDesc& desc, const MatmulOperands&, Stream&,
                                          const Unfused& unfused) {
  if (test::on_fused()) test::on_fused()(desc, unfused);
  if (desc.operands == DType::f32 || (desc.activation != Activation::none && desc.n % 8)) return nullptr;
  test::products().push_back(desc);
  return std::make_unique<Double>(desc);
}

Result<std::unique_ptr<Attention>> make_attention(const AttentionDesc&) {
  if (!test::on_library_call() && !test::on_attention()) return internal_error("no engine");
  return std::unique_ptr<Attention>(new CalledAttention());
}

}  // namespace lancet::backend::cuda
