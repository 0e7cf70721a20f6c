#include "ops/cpu.h"
#include "math.h"

namespace lancet::ops {
namespace {

template <class T>
void apply(std::int64_t n, const T* x, T* y) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = from_f32<T>(swiglu(to_f32(x[2 * i]), to_f32(x[2 * i + 1])));
}

template <class T>
void apply_dx(std::int64_t n, const T* dy, const T* x, T* dx) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = to_f32(dy[i]), gate = to_f32(x[2 * i]), up = to_f32(x[2 * i + 1]);
    dx[2 * i] = from_f32<T>(swiglu_dgate(g, gate, up));
    dx[2 * i + 1] = from_f32<T>(swiglu_dup(g, gate));
  }
}

// Calls f(first, n) for ranges of the elements of a tensor [...,f], which threads share: all of them, or those of the
// filled rows if the instruction has the operand number `rows`.
template <class F>
Kernel over_features(const KernelArgs& args, int rows, const Shape& shape, F f) {
  const std::int64_t columns = shape.back();
  const auto range = [=](std::int64_t begin, std::int64_t end) { f(begin * columns, (end - begin) * columns); };
  if (!args.has(rows))
    return [=, count = shape.rows()]() -> Status {
      cpu::parallel_for(count, cpu::row_grain(columns), range);
      return {};
    };
  return [=, filled = cpu::FilledRows(args.operands[std::size_t(rows)], shape[1])]() -> Status {
    filled.parallel(cpu::row_grain(columns), range);
    return {};
  };
}

Kernel bind(const KernelArgs& args) {
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    const T* x = args.operands[0].as<T>();
    return over_features(
        args, 1, args.results[0].shape(),
        [x, y = args.results[0].as<T>()](std::int64_t first, std::int64_t n) { apply(n, x + 2 * first, y + first); });
  });
}

Kernel bind_dx(const KernelArgs& args) {
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    const T *dy = args.operands[0].as<T>(), *x = args.operands[1].as<T>();
    return over_features(args, 2, args.operands[0].shape(),
                         [dy, x, dx = args.results[0].as<T>()](std::int64_t first, std::int64_t n) {
                           apply_dx(n, dy + first, x + 2 * first, dx + 2 * first);
                         });
  });
}

const CpuKernel table[] = {{"swiglu", bind}, {"swiglu_dx", bind_dx}};

}  // namespace

std::span<const CpuKernel> swiglu_cpu() { return table; }

}  // namespace lancet::ops
