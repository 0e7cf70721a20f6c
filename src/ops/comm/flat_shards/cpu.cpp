#include <memory>

#include "cpu_transfer.h"

namespace lancet::ops {
namespace {

// Calls f(T{}) with the type in which values travel.
template <class F>
auto by_message(DType type, F f) {
  return type == DType::bf16 ? f(bf16{}) : f(float{});
}

Kernel bind_sums(const KernelArgs& args) {
  const std::int64_t ranks = ranks_of_shards(args, args.group.comm != nullptr);
  return by_message(message_type(args.attributes), [&](auto sent) -> Kernel {
    const PackedTensors values = packed(args.operands, args.attributes), results = packed_shards(args.results);
    const CpuShardTransfer<decltype(sent)> transfer(args.group, ranks, length_of(values), args.workspace);
    return [=]() -> Status {
      return transfer.rounds(
          [&](std::int64_t from, std::int64_t to) { return transfer.sum(values, results, 0, false, from, to); });
    };
  });
}

std::size_t sums_workspace(const KernelArgs& args) {
  const std::int64_t length = length_of(packed(args.operands, args.attributes));
  return by_message(message_type(args.attributes), [&](auto sent) {
    return CpuShardTransfer<decltype(sent)>::workspace_bytes(args.attributes.integer("shards"), length);
  });
}

Kernel bind_gather(const KernelArgs& args) {
  const std::int64_t ranks = ranks_of_shards(args, args.group.comm != nullptr);
  return by_message(args.operands[0].dtype(), [&](auto sent) -> Kernel {
    using T = decltype(sent);
    const PackedTensors tensors = packed(args.operands, args.attributes);
    const CpuShardTransfer<T> transfer(args.group, ranks, length_of(tensors), args.workspace);
    return [=]() -> Status {
      return transfer.rounds(
          [&](std::int64_t from, std::int64_t to) { return transfer.template gather<T>(tensors, from, to); });
    };
  });
}

std::size_t gather_workspace(const KernelArgs& args) {
  const std::int64_t length = length_of(packed(args.operands, args.attributes));
  return by_message(args.operands[0].dtype(), [&](auto sent) {
    return CpuShardTransfer<decltype(sent)>::workspace_bytes(args.attributes.integer("shards"), length);
  });
}

const CpuKernel table[] = {{"reduce_scatter_flat", bind_sums, sums_workspace},
                           {"all_gather_flat", bind_gather, gather_workspace}};

}  // namespace

std::span<const CpuKernel> flat_shards_cpu() { return table; }

}  // namespace lancet::ops
