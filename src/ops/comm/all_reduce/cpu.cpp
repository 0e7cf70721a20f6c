#include "ops/comm/flat_shards/cpu_transfer.h"
#include "spans.h"

namespace lancet::ops {
namespace {

// In bf16 each rank sums its shard of the vector, rounds the sums, and gives them to all others.
Kernel bind_rounded(const KernelArgs& args) {
  const PackedTensors values = packed(args.results, args.attributes);
  const CpuShardTransfer<bf16> transfer(args.group, ranks_of_shards(args, true), length_of(values), args.workspace);
  return [=]() -> Status {
    return transfer.rounds([&](std::int64_t from, std::int64_t to) -> Status {
      LANCET_TRY(transfer.sum(values, values, transfer.place(), true, from, to));
      return transfer.gather<float>(values, from, to);
    });
  };
}

Kernel bind(const KernelArgs& args) {
  if (!args.group.comm || args.group.size == 1) return [] { return Status{}; };
  if (message_type(args.attributes) == DType::bf16) return bind_rounded(args);
  return [comm = args.group.comm, spans = merge(args.results)]() -> Status {
    for (std::span<float> values : spans) LANCET_TRY(comm->all_reduce_sum(values));
    return {};
  };
}

std::size_t workspace(const KernelArgs& args) {
  if (message_type(args.attributes) == DType::f32) return 0;
  const std::int64_t length = length_of(packed(args.results, args.attributes));
  return CpuShardTransfer<bf16>::workspace_bytes(args.attributes.integer("shards"), length);
}

const CpuKernel table[] = {{"all_reduce", bind, workspace}};

}  // namespace

std::span<const CpuKernel> all_reduce_cpu() { return table; }

}  // namespace lancet::ops
