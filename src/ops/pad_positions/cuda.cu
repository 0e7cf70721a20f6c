#include "ops/device/pack.h"
#include "positions.h"

namespace lancet::ops {
namespace {

using namespace device;

// A unit (an element or a pack) per thread. Bytes: each element of the result written once, those of tokens read once.
template <class Unit>
struct Resize {
  static constexpr int threads = 256;
  PositionRows rows;
  const Unit* from;
  Unit* to;
  std::int64_t units;  // of a row
  Unit padding;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t i = std::int64_t(block.index()) * threads + block.thread();
    if (i >= rows.sequences * rows.to * units) return;
    const std::int64_t source = rows.source(i / units);
    to[i] = source < 0 ? padding : from[source * units + i % units];
  }
};

template <class Unit>
Kernel resize_units(const KernelArgs& args, std::size_t operand, const PositionRows& rows, std::int64_t units,
                    Padding padding) {
  Unit filler{};
  std::memset(&filler, int(padding), sizeof filler);
  const Resize<Unit> kernel{rows, args.operands[operand].as<Unit>(), args.results[operand].as<Unit>(), units, filler};
  return run_steps(args.stream, Step{divide_up(rows.results() * units, kernel.threads), kernel});
}

Kernel resize(const KernelArgs& args, std::size_t operand, const PositionRows& rows, Padding padding) {
  const std::int64_t unit = size_of(args.operands[operand].dtype()), bytes = rows.run * unit;
  if (bytes % 16 == 0 && aligned(args.operands[operand].as<std::byte>(), args.results[operand].as<std::byte>()))
    return resize_units<Pack<std::int32_t>>(args, operand, rows, bytes / 16, padding);
  if (unit == 4) return resize_units<std::int32_t>(args, operand, rows, rows.run, padding);
  return resize_units<std::int16_t>(args, operand, rows, rows.run, padding);
}

Kernel bind_pad(const KernelArgs& args) {
  return resize(args, 0, PositionRows::padded(args, 0, args.attributes.integer("axis", 1)), Padding::zero);
}
Kernel bind_cut(const KernelArgs& args) { return resize(args, 0, PositionRows::cut(args), Padding::zero); }
Kernel bind_targets(const KernelArgs& args) {
  return resize(args, 0, PositionRows::padded(args, 0, 1), Padding::minus_one);
}

Kernel bind_choices(const KernelArgs& args) {
  return [weight = resize(args, 0, PositionRows::padded(args, 0, 0), Padding::zero),
          expert = resize(args, 1, PositionRows::padded(args, 1, 0), Padding::zero),
          slot = resize(args, 2, PositionRows::padded(args, 2, 0), Padding::minus_one)]() -> Status {
    LANCET_TRY(weight());
    LANCET_TRY(expert());
    return slot();
  };
}

const DeviceKernel table[] = {{"pad_positions", bind_pad},
                              {"cut_positions", bind_cut},
                              {"pad_targets", bind_targets},
                              {"pad_choices", bind_choices}};

}  // namespace

std::span<const DeviceKernel> pad_positions_cuda() { return table; }

}  // namespace lancet::ops
