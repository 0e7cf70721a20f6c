#include <cstring>

#include "ops/cpu.h"

namespace lancet::ops {
namespace {

// The neighbour's place in the pair of ranks that a stream between stages joins; the earlier stage is the first.
int neighbour_of(const comm::Group& pair) { return 1 - pair.place; }

Kernel bind_send(const KernelArgs& args) {
  if (!args.group.comm || args.group.size == 1) return [] { return Status{}; };
  const comm::Segment message{neighbour_of(args.group), args.operands[0].as<std::byte>(),
                              std::size_t(ir::bytes(args.operands[0].type))};
  return [=, comm = args.group.comm]() -> Status { return comm->send_receive({&message, 1}, {}); };
}

Kernel zero(const TensorView& view) {
  return [data = view.as<std::byte>(), bytes = std::size_t(ir::bytes(view.type))]() -> Status {
    std::memset(data, 0, bytes);
    return {};
  };
}

Kernel bind_receive(const KernelArgs& args) {
  if (!args.group.comm || args.group.size == 1) return zero(args.results[0]);
  const comm::Segment message{neighbour_of(args.group), args.results[0].as<std::byte>(),
                              std::size_t(ir::bytes(args.results[0].type))};
  return [=, comm = args.group.comm]() -> Status { return comm->send_receive({}, {&message, 1}); };
}

Kernel bind_no_share(const KernelArgs& args) { return zero(args.results[0]); }

const CpuKernel table[] = {{"send_next", bind_send},
                           {"send_previous", bind_send},
                           {"receive_next", bind_receive},
                           {"receive_previous", bind_receive},
                           {"no_share", bind_no_share}};

}  // namespace

std::span<const CpuKernel> stage_transfer_cpu() { return table; }

}  // namespace lancet::ops
