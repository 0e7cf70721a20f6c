#include <cstring>

#include "slots.h"

namespace lancet::ops {
namespace {

Kernel bind(const KernelArgs& args) {
  const SlotRows rows(args.operands[1], args.operands[2], args.results[0], args.share());
  const auto* x = args.operands[0].as<std::byte>();
  auto* slots = args.results[0].as<std::byte>();
  return [=]() -> Status {
    rows.for_each([=, bytes = rows.row_bytes](std::int64_t t, std::int64_t row) {
      if (row >= 0) std::memcpy(slots + std::size_t(row) * bytes, x + std::size_t(t) * bytes, bytes);
    });
    return {};
  };
}

Kernel bind_dx(const KernelArgs& args) {
  const SlotRows rows(args.operands[1], args.operands[2], args.operands[0], args.share());
  const auto* slots = args.operands[0].as<std::byte>();
  auto* dx = args.results[0].as<std::byte>();
  return [=]() -> Status {
    rows.for_each([=, bytes = rows.row_bytes](std::int64_t t, std::int64_t row) {
      std::byte* out = dx + std::size_t(t) * bytes;
      if (row >= 0)
        std::memcpy(out, slots + std::size_t(row) * bytes, bytes);
      else
        std::memset(out, 0, bytes);
    });
    return {};
  };
}

const CpuKernel table[] = {{"dispatch", bind}, {"dispatch_dx", bind_dx}};

}  // namespace

std::span<const CpuKernel> dispatch_cpu() { return table; }

}  // namespace lancet::ops
