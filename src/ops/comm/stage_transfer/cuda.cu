#include "lancet/ops/kernel.h"

namespace lancet::ops {
namespace {

Kernel bind_send(const KernelArgs& args) {
  if (!args.group.device_comm || args.group.size == 1) return [] { return Status{}; };
  const comm::Segment message{1 - args.group.place, args.operands[0].as<std::byte>(),
                              std::size_t(ir::bytes(args.operands[0].type))};
  return [=, comm = args.group.device_comm, stream = args.stream] {
    return comm->send_receive(*stream, {&message, 1}, {});
  };
}

Kernel bind_stage_transfer_zeros(const KernelArgs& args) {
  return [stream = args.stream, data = args.results[0].data, bytes = std::size_t(ir::bytes(args.results[0].type))] {
    return stream->zero(data, bytes);
  };
}

Kernel bind_receive(const KernelArgs& args) {
  if (!args.group.device_comm || args.group.size == 1) return bind_stage_transfer_zeros(args);
  const comm::Segment message{1 - args.group.place, args.results[0].as<std::byte>(),
                              std::size_t(ir::bytes(args.results[0].type))};
  return [=, comm = args.group.device_comm, stream = args.stream] {
    return comm->send_receive(*stream, {}, {&message, 1});
  };
}

}  // namespace

std::span<const DeviceKernel> stage_transfer_cuda() {
  static const DeviceKernel table[] = {{"send_next", bind_send, nullptr, false},
                                       {"send_previous", bind_send, nullptr, false},
                                       {"receive_next", bind_receive, nullptr, false},
                                       {"receive_previous", bind_receive, nullptr, false},
                                       {"no_share", bind_stage_transfer_zeros}};
  return table;
}

}  // namespace lancet::ops
