#include "ops/device/copy_shards.h"

namespace lancet::ops {
namespace {

Kernel bind_take(const KernelArgs& args) {
  const ShardLayout layout =
      ShardedDimension(args.attributes).layout(args.operands[0].shape(), args.attributes.integer("shards"));
  const std::int64_t unit = size_of(args.operands[0].dtype()), place = args.group.place;
  LANCET_CHECK(place < layout.shards, "{} is planned for {} ranks, found place {}", args.op, layout.shards, place);
  return [=, stream = args.stream, x = args.operands[0].as<std::byte>(), y = args.results[0].as<std::byte>()] {
    return device::copy_shards(*stream, layout, unit, false, x, y, place, 1);
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

const DeviceKernel table[] = {{"take_shard", bind_take}, {"one_summand", bind_summand}};

}  // namespace

std::span<const DeviceKernel> take_shard_cuda() { return table; }

}  // namespace lancet::ops
