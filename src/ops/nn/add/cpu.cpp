#include "ops/cpu.h"

namespace lancet::ops {
namespace {

Kernel bind(const KernelArgs& args) {
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T *a = args.operands[0].as<T>(), *b = args.operands[1].as<T>();
    T* y = args.results[0].as<T>();
    const std::int64_t n = args.operands[0].elements();
    return [=]() -> Status {
      cpu::parallel_map(
          n, y, [](float u, float v) { return u + v; }, a, b);
      return {};
    };
  });
}

const CpuKernel table[] = {{"add", bind}, {"add_to", bind}};

}  // namespace

std::span<const CpuKernel> add_cpu() { return table; }

}  // namespace lancet::ops
