#include <cstring>

#include "slots.h"

namespace lancet::ops {
namespace {

Kernel bind(const KernelArgs& args) {
  const SlotRows rows(args.operands[1], args.operands[2], args.results[0], args.share());
  const auto* x = args.operands[0].as<std::byte>();
  auto* slots = args.results[0].as<std::byte>();
  return [=]() -> Status {
    rows.for_each([=, &at = rows.at, bytes = rows.row_bytes](std::int64_t t) {
      for (std::int64_t k = at.next(t, 0); k < at.choices; k = at.next(t, k + 1))
        std::memcpy(slots + std::size_t(at.row(t, k)) * bytes, x + std::size_t(t) * bytes, bytes);
    });
    return {};
  };
}

template <class T>
Kernel bind_sums(const KernelArgs& args) {
  const SlotRows rows(args.operands[1], args.operands[2], args.operands[0], args.share());
  const T* slots = args.operands[0].as<T>();
  T* dx = args.results[0].as<T>();
  return [=]() -> Status {
    rows.for_each([&](std::int64_t t) {
      sum_rows(
          rows, t, slots, dx + t * rows.width, [](std::int64_t) { return 1.f; },
          [&](std::int64_t, const T* row, T* out) { std::memcpy(out, row, rows.row_bytes); });
    });
    return {};
  };
}

Kernel bind_dx(const KernelArgs& args) {
  return cpu::by_dtype(args.results[0].dtype(), [&]<class T>(T) { return bind_sums<T>(args); });
}

const CpuKernel table[] = {{"dispatch", bind}, {"dispatch_dx", bind_dx}};

}  // namespace

std::span<const CpuKernel> dispatch_cpu() { return table; }

}  // namespace lancet::ops
