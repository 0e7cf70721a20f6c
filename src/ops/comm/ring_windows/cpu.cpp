#include <cstring>
#include <vector>

#include "ops/cpu_shards.h"
#include "window_shard.h"

namespace lancet::ops {
namespace {

Kernel bind_take(const KernelArgs& args) {
  const WindowShards of(args, args.operands[0]);
  const std::int64_t shard = of.shard_of(args.attributes.integer("part"));
  const auto* x = args.operands[0].as<std::byte>();
  auto* window = args.results[0].as<std::byte>();
  return [=]() -> Status {
    cpu::take_shard(of.layout, of.unit, shard, x, window);
    return {};
  };
}

Kernel bind_join(const KernelArgs& args) {
  std::vector<const std::byte*> windows;
  for (const TensorView& window : args.operands) windows.push_back(window.as<std::byte>());
  return [of = WindowShards(args, args.results[0]), windows, whole = args.results[0].as<std::byte>()]() -> Status {
    for (std::size_t i = 0; i < windows.size(); ++i)
      cpu::put_shard(of.layout, of.unit, of.shard_of(std::int64_t(i)), windows[i], whole);
    return {};
  };
}

const CpuKernel table[] = {{"take_window", bind_take}, {"join_windows", bind_join}};

}  // namespace

std::span<const CpuKernel> ring_windows_cpu() { return table; }

}  // namespace lancet::ops
