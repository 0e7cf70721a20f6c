#include "ops/comm/flat_shards/device_transfer.h"
#include "spans.h"

namespace lancet::ops {
namespace {

// As on the CPU.
Kernel bind_rounded(const KernelArgs& args) {
  using namespace device;
  const PackedTensors values = packed(args.results, args.attributes);
  const DeviceShardTransfer<bf16> transfer(args, ranks_of_shards(args, true), length_of(values));
  const auto tables = std::make_shared<const std::vector<PackedTable>>(tables_of(values));
  return [=]() -> Status {
    return transfer.rounds([&](std::int64_t from, std::int64_t to) -> Status {
      LANCET_TRY(transfer.sum(*tables, *tables, transfer.place(), true, from, to));
      return transfer.gather<float>(*tables, from, to);
    });
  };
}

Kernel bind_all_reduce(const KernelArgs& args) {
  if (!args.group.device_comm || args.group.size == 1) return [] { return Status{}; };
  if (message_type(args.attributes) == DType::bf16) return bind_rounded(args);
  return [comm = args.group.device_comm, stream = args.stream, spans = merge(args.results)]() -> Status {
    for (std::span<float> values : spans) LANCET_TRY(comm->all_reduce_sum(*stream, values));
    return {};
  };
}

std::size_t workspace_all_reduce(const KernelArgs& args) {
  if (message_type(args.attributes) == DType::f32) return 0;
  const std::int64_t length = length_of(packed(args.results, args.attributes));
  return device::DeviceShardTransfer<bf16>::workspace_bytes(args.attributes.integer("shards"), length);
}

}  // namespace

std::span<const DeviceKernel> all_reduce_cuda() {
  static const DeviceKernel table[] = {{"all_reduce", bind_all_reduce, workspace_all_reduce, false}};
  return table;
}

}  // namespace lancet::ops
