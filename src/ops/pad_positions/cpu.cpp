#include <cstring>

#include "ops/cpu.h"
#include "positions.h"

namespace lancet::ops {
namespace {

Kernel resize(const KernelArgs& args, std::size_t operand, const PositionRows& rows, Padding padding) {
  const std::int64_t bytes = rows.run * size_of(args.operands[operand].dtype());
  const auto* from = args.operands[operand].as<std::byte>();
  auto* to = args.results[operand].as<std::byte>();
  return [=]() -> Status {
    cpu::parallel_for(rows.results(), cpu::row_grain(rows.run), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        if (const std::int64_t source = rows.source(r); source >= 0)
          std::memcpy(to + r * bytes, from + source * bytes, std::size_t(bytes));
        else
          std::memset(to + r * bytes, int(padding), std::size_t(bytes));
      }
    });
    return {};
  };
}

Kernel bind_pad(const KernelArgs& args) {
  return resize(args, 0, PositionRows::padded(args, 0, args.attributes.integer("axis", 1)), Padding::zero);
}
Kernel bind_cut(const KernelArgs& args) { return resize(args, 0, PositionRows::cut(args), Padding::zero); }
Kernel bind_targets(const KernelArgs& args) {
  return resize(args, 0, PositionRows::padded(args, 0, 1), Padding::minus_one);
}

Kernel bind_choices(const KernelArgs& args) {
  const Kernel weight = resize(args, 0, PositionRows::padded(args, 0, 0), Padding::zero);
  const Kernel expert = resize(args, 1, PositionRows::padded(args, 1, 0), Padding::zero);
  const Kernel slot = resize(args, 2, PositionRows::padded(args, 2, 0), Padding::minus_one);
  return [=]() -> Status {
    LANCET_TRY(weight());
    LANCET_TRY(expert());
    return slot();
  };
}

const CpuKernel table[] = {{"pad_positions", bind_pad},
                           {"cut_positions", bind_cut},
                           {"pad_targets", bind_targets},
                           {"pad_choices", bind_choices}};

}  // namespace

std::span<const CpuKernel> pad_positions_cpu() { return table; }

}  // namespace lancet::ops
