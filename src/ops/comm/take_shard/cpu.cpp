#include <cstring>
#include <vector>

#include "ops/cpu_shards.h"
#include "window_shard.h"

namespace lancet::ops {
namespace {

Kernel bind_take(const KernelArgs& args, std::int64_t window) {
  const WindowShards of(args, args.operands[0]);
  const std::int64_t shard = of.shard_of(window);
  const auto* x = args.operands[0].as<std::byte>();
  auto* y = args.results[0].as<std::byte>();
  return [=]() -> Status {
    cpu::take_shard(of.layout, of.unit, shard, x, y);
    return {};
  };
}

Kernel bind_shard(const KernelArgs& args) { return bind_take(args, 0); }
Kernel bind_window(const KernelArgs& args) { return bind_take(args, args.attributes.integer("part")); }

Kernel bind_join(const KernelArgs& args) {
  std::vector<const std::byte*> windows;
  for (const TensorView& window : args.operands) windows.push_back(window.as<std::byte>());
  return [of = WindowShards(args, args.results[0]), windows, whole = args.results[0].as<std::byte>()]() -> Status {
    for (std::size_t i = 0; i < windows.size(); ++i)
      cpu::put_shard(of.layout, of.unit, of.shard_of(std::int64_t(i)), windows[i], whole);
    return {};
  };
}

Kernel bind_summand(const KernelArgs& args) {
  const std::int64_t bytes = ir::bytes(args.operands[0].type);
  const std::byte* x = args.group.place == 0 ? args.operands[0].as<std::byte>() : nullptr;
  auto* y = args.results[0].as<std::byte>();
  return [=]() -> Status {
    cpu::parallel_for(bytes, 4 * cpu::grain_elements, [&](std::int64_t begin, std::int64_t end) {
      if (x)
        std::memcpy(y + begin, x + begin, std::size_t(end - begin));
      else
        std::memset(y + begin, 0, std::size_t(end - begin));
    });
    return {};
  };
}

const CpuKernel table[] = {{"take_shard", bind_shard},
                           {"take_window", bind_window},
                           {"join_windows", bind_join},
                           {"one_summand", bind_summand}};

}  // namespace

std::span<const CpuKernel> take_shard_cpu() { return table; }

}  // namespace lancet::ops
