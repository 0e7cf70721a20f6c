#include "device_transfer.h"

namespace lancet::ops {
namespace {

using namespace device;
using Tables = std::vector<PackedTable>;

template <class Wire>
Kernel bind_sums_as(const KernelArgs& args) {
  const PackedTensors values = packed(args.operands, args.attributes);
  const std::int64_t ranks = ranks_of_shards(args, args.group.device_comm != nullptr);
  const DeviceShardTransfer<Wire> transfer(args, ranks, length_of(values));
  const auto from_tables = std::make_shared<const Tables>(tables_of(values));
  const auto to_tables = std::make_shared<const Tables>(tables_of(packed_shards(args.results)));
  return [=]() -> Status {
    return transfer.rounds(
        [&](std::int64_t from, std::int64_t to) { return transfer.sum(*from_tables, *to_tables, 0, false, from, to); });
  };
}

template <class T>
Kernel bind_gather_as(const KernelArgs& args) {
  const PackedTensors tensors = packed(args.operands, args.attributes);
  const std::int64_t ranks = ranks_of_shards(args, args.group.device_comm != nullptr);
  const DeviceShardTransfer<T> transfer(args, ranks, length_of(tensors));
  const auto tables = std::make_shared<const Tables>(tables_of(tensors));
  return [=]() -> Status {
    return transfer.rounds(
        [&](std::int64_t from, std::int64_t to) { return transfer.template gather<T>(*tables, from, to); });
  };
}

std::size_t workspace_flat_shards(const KernelArgs& args, DType type) {
  const std::int64_t length = length_of(packed(args.operands, args.attributes));
  const std::int64_t ranks = args.attributes.integer("shards");
  return type == DType::bf16 ? DeviceShardTransfer<bf16>::workspace_bytes(ranks, length)
                             : DeviceShardTransfer<float>::workspace_bytes(ranks, length);
}

Kernel bind_sums(const KernelArgs& args) {
  return message_type(args.attributes) == DType::bf16 ? bind_sums_as<bf16>(args) : bind_sums_as<float>(args);
}
std::size_t sums_workspace(const KernelArgs& args) {
  return workspace_flat_shards(args, message_type(args.attributes));
}

Kernel bind_flat_shards_gather(const KernelArgs& args) {
  return args.operands[0].dtype() == DType::bf16 ? bind_gather_as<bf16>(args) : bind_gather_as<float>(args);
}
std::size_t gather_workspace(const KernelArgs& args) { return workspace_flat_shards(args, args.operands[0].dtype()); }

}  // namespace

std::span<const DeviceKernel> flat_shards_cuda() {
  static const DeviceKernel table[] = {{"reduce_scatter_flat", bind_sums, sums_workspace, false},
                                       {"all_gather_flat", bind_flat_shards_gather, gather_workspace, false}};
  return table;
}

}  // namespace lancet::ops
