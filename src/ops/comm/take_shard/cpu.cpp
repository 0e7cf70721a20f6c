#include <cstring>

#include "ops/cpu_shards.h"

namespace lancet::ops {
namespace {

Kernel bind_take(const KernelArgs& args) {
  const ShardLayout layout =
      ShardedDimension(args.attributes).layout(args.operands[0].shape(), args.attributes.integer("shards"));
  const std::int64_t unit = size_of(args.operands[0].dtype()), place = args.group.place;
  LANCET_CHECK(place < layout.shards, "{} is planned for {} ranks, found place {}", args.op, layout.shards, place);
  const auto* x = args.operands[0].as<std::byte>();
  auto* shard = args.results[0].as<std::byte>();
  return [=]() -> Status {
    cpu::take_shard(layout, unit, place, x, shard);
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

const CpuKernel table[] = {{"take_shard", bind_take}, {"one_summand", bind_summand}};

}  // namespace

std::span<const CpuKernel> take_shard_cpu() { return table; }

}  // namespace lancet::ops
