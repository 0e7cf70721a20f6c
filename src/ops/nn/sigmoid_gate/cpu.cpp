#include "ops/cpu.h"
#include "math.h"

namespace lancet::ops {
namespace {

// Calls f(r) for each of the rows of `args`' first operand, which threads share.
template <class F>
Kernel over_rows(const KernelArgs& args, F f) {
  const Shape& shape = args.operands[0].shape();
  return [=, rows = shape.rows(), grain = cpu::row_grain(shape.back())]() -> Status {
    cpu::parallel_for(rows, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) f(r);
    });
    return {};
  };
}

Kernel bind(const KernelArgs& args) {
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    const T *x = args.operands[0].as<T>(), *gate = args.operands[1].as<T>();
    return over_rows(args, [=, y = args.results[0].as<T>(), d = args.operands[0].shape().back()](std::int64_t r) {
      const float s = sigmoid(to_f32(gate[r]));
      cpu::map(
          d, y + r * d, [s](float v) { return s * v; }, x + r * d);
    });
  });
}

Kernel bind_dgate(const KernelArgs& args) {
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    const T *dy = args.operands[0].as<T>(), *x = args.operands[1].as<T>(), *gate = args.operands[2].as<T>();
    return over_rows(args, [=, dgate = args.results[0].as<T>(), d = args.operands[0].shape().back()](std::int64_t r) {
      const float s = sigmoid(to_f32(gate[r]));
      const float dot =
          cpu::sum(d, [g = dy + r * d, v = x + r * d](std::int64_t i) { return to_f32(g[i]) * to_f32(v[i]); });
      dgate[r] = from_f32<T>(dot * s * (1.f - s));
    });
  });
}

const CpuKernel table[] = {{"sigmoid_gate", bind}, {"sigmoid_gate_dgate", bind_dgate}};

}  // namespace

std::span<const CpuKernel> sigmoid_gate_cpu() { return table; }

}  // namespace lancet::ops
