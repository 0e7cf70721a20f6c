#include "ops/cpu.h"
#include "math.h"

namespace lancet::ops {
namespace {

// Maps the whole tensor, or only its filled rows if the instruction has the operand number `rows`.
template <class Out, class F, class... In>
Kernel bind_map(const KernelArgs& args, int rows, Out* out, F f, const In*... in) {
  const Shape& shape = args.operands[0].shape();
  if (!args.has(rows)) {
    const std::int64_t n = shape.elements();
    return [=]() -> Status {
      cpu::parallel_map(n, out, f, in...);
      return {};
    };
  }
  const cpu::FilledRows filled(args.operands[std::size_t(rows)], shape[1]);
  const std::int64_t columns = shape[2];
  return [=]() -> Status {
    filled.parallel(cpu::row_grain(columns), [&](std::int64_t begin, std::int64_t end) {
      cpu::map((end - begin) * columns, out + begin * columns, f, (in + begin * columns)...);
    });
    return {};
  };
}

Kernel bind(const KernelArgs& args) {
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    return bind_map(
        args, 1, args.results[0].as<T>(), [](float x) { return gelu(x); },
        static_cast<const T*>(args.operands[0].as<T>()));
  });
}

Kernel bind_dx(const KernelArgs& args) {
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    return bind_map(
        args, 2, args.results[0].as<T>(), [](float dy, float x) { return dy * gelu_slope(x); },
        static_cast<const T*>(args.operands[0].as<T>()), static_cast<const T*>(args.operands[1].as<T>()));
  });
}

const CpuKernel table[] = {{"gelu", bind}, {"gelu_dx", bind_dx}};

}  // namespace

std::span<const CpuKernel> gelu_cpu() { return table; }

}  // namespace lancet::ops
