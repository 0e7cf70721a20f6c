#include <vector>

#include "ops/device/copy_shards.h"
#include "window_shard.h"

namespace lancet::ops {
namespace {

Kernel bind_take(const KernelArgs& args) {
  const WindowShards of(args, args.operands[0]);
  const std::int64_t shard = of.shard_of(args.attributes.integer("part"));
  return [=, stream = args.stream, x = args.operands[0].as<std::byte>(), y = args.results[0].as<std::byte>()] {
    return device::copy_shards(*stream, of.layout, of.unit, false, x, y, shard, 1);
  };
}

Kernel bind_join(const KernelArgs& args) {
  std::vector<std::byte*> windows;
  for (const TensorView& window : args.operands) windows.push_back(window.as<std::byte>());
  return [of = WindowShards(args, args.results[0]), windows, stream = args.stream,
          whole = args.results[0].as<std::byte>()]() -> Status {
    for (std::size_t i = 0; i < windows.size(); ++i)
      LANCET_TRY(
          device::copy_shards(*stream, of.layout, of.unit, true, whole, windows[i], of.shard_of(std::int64_t(i)), 1));
    return {};
  };
}

const DeviceKernel table[] = {{"take_window", bind_take}, {"join_windows", bind_join}};

}  // namespace

std::span<const DeviceKernel> ring_windows_cuda() { return table; }

}  // namespace lancet::ops
