#include "ops/cpu.h"
#include "ops/moe/dispatch/slots.h"

namespace lancet::ops {
namespace {

template <class T>
void scale(const T* in, float factor, T* out, std::int64_t n) {
  cpu::map(
      n, out, [=](float x) { return x * factor; }, in);
}

// a . b in f32, summed in an order that depends on n alone.
template <class T>
float dot(const T* a, const T* b, std::int64_t n) {
  return cpu::sum(n, [=](std::int64_t i) { return to_f32(a[i]) * to_f32(b[i]); });
}

template <class T>
Kernel combine(const KernelArgs& args) {
  const SlotRows rows(args.operands[1], args.operands[2], args.operands[0], args.share());
  const float* weight = args.operands[3].as<float>();
  const T* slots = args.operands[0].as<T>();
  T* y = args.results[0].as<T>();
  return [=]() -> Status {
    rows.for_each([&](std::int64_t t) {
      const float* factors = weight + t * rows.at.choices;
      sum_rows(
          rows, t, slots, y + t * rows.width, [=](std::int64_t k) { return factors[k]; },
          [&](std::int64_t k, const T* row, T* out) { scale(row, factors[k], out, rows.width); });
    });
    return {};
  };
}

template <class T>
Kernel combine_dx(const KernelArgs& args) {
  const SlotRows rows(args.operands[2], args.operands[3], args.results[0], args.share());
  const float* weight = args.operands[4].as<float>();
  const T* dy = args.operands[0].as<T>();
  T* slots = args.results[0].as<T>();  // in: the experts' results; out: their gradients
  float* dweight = args.results[1].as<float>();
  return [=]() -> Status {
    rows.for_each([=, &at = rows.at, width = rows.width](std::int64_t t) {
      const T* in = dy + t * width;
      for (std::int64_t k = 0, i = t * at.choices; k < at.choices; ++k, ++i) {
        const std::int64_t row = at.row(t, k);
        dweight[i] = row >= 0 ? dot(in, slots + row * width, width) : 0.f;
        if (row >= 0) scale(in, weight[i], slots + row * width, width);
      }
    });
    return {};
  };
}

Kernel bind(const KernelArgs& args) {
  return args.results[0].dtype() == DType::bf16 ? combine<bf16>(args) : combine<float>(args);
}
Kernel bind_dx(const KernelArgs& args) {
  return args.results[0].dtype() == DType::bf16 ? combine_dx<bf16>(args) : combine_dx<float>(args);
}

const CpuKernel table[] = {{"combine", bind}, {"combine_dx", bind_dx}};

}  // namespace

std::span<const CpuKernel> combine_cpu() { return table; }

}  // namespace lancet::ops
