#include <vector>

#include "ops/device/copy_shards.h"
#include "window_shard.h"

namespace lancet::ops {
namespace {

Kernel bind_take(const KernelArgs& args, std::int64_t window) {
  const WindowShards of(args, args.operands[0]);
  const std::int64_t shard = of.shard_of(window);
  return [=, stream = args.stream, x = args.operands[0].as<std::byte>(), y = args.results[0].as<std::byte>()] {
    return device::copy_shards(*stream, of.layout, of.unit, false, x, y, shard, 1);
  };
}

Kernel bind_shard(const KernelArgs& args) { return bind_take(args, 0); }
Kernel bind_take_shard_window(const KernelArgs& args) { return bind_take(args, args.attributes.integer("part")); }

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

Kernel bind_summand(const KernelArgs& args) {
  const std::int64_t unit = size_of(args.operands[0].dtype()), n = args.operands[0].elements();
  const ShardLayout all{1, 1, n};
  auto *x = args.operands[0].as<std::byte>(), *y = args.results[0].as<std::byte>();
  return [=, stream = args.stream, first = args.group.place == 0]() -> Status {
    if (!first) return stream->zero(y, std::size_t(n * unit));
    return device::copy_shards(*stream, all, unit, false, x, y, 0, 1);
  };
}

}  // namespace

std::span<const DeviceKernel> take_shard_cuda() {
  static const DeviceKernel table[] = {{"take_shard", bind_shard},
                                       {"take_window", bind_take_shard_window},
                                       {"join_windows", bind_join},
                                       {"one_summand", bind_summand}};
  return table;
}

}  // namespace lancet::ops
