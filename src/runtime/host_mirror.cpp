#include "host_mirror.h"

#include <algorithm>

namespace lancet::runtime {

Status HostMirror::allocate_inputs(const ir::Program& program, backend::Device& device) {
  const std::size_t bytes = Addresses::input_bytes(program);
  LANCET_ASSIGN(input_memory_, Block::on_device(device, bytes));
  LANCET_ASSIGN(inputs_, Block::page_locked(device, bytes));
  return {};
}

Status HostMirror::allocate_outputs(const ir::Program& program, const Addresses& addresses, backend::Device& device) {
  std::size_t bytes = 0;
  auto aligned = [](std::int64_t size) { return (static_cast<std::size_t>(size) + 63) / 64 * 64; };
  for (const ir::Output& output : program.outputs) bytes += aligned(ir::bytes(program.type(output.tensor)));
  LANCET_ASSIGN(output_memory_, Block::page_locked(device, bytes));
  std::byte* next = output_memory_.start();
  for (const ir::Output& output : program.outputs) {
    const ops::TensorView view = addresses.view(output.tensor);
    outputs_.push_back({output.name, view, {next, view.type}});
    next += aligned(ir::bytes(view.type));
  }
  return {};
}

ops::TensorView HostMirror::input(ops::TensorView device_view) const {
  device_view.data = inputs_.start() + (static_cast<std::byte*>(device_view.data) - input_memory_.start());
  return device_view;
}

ops::TensorView HostMirror::output(std::string_view name) const {
  const auto at = std::find_if(outputs_.begin(), outputs_.end(), [&](const Output& o) { return o.name == name; });
  LANCET_CHECK(at != outputs_.end(), "the plan has no output {}", name);
  return at->host;
}

Status HostMirror::copy_outputs(backend::Stream& stream) const {
  for (const Output& output : outputs_)
    if (output.device.data)
      LANCET_TRY(
          stream.copy(output.host.data, output.device.data, static_cast<std::size_t>(ir::bytes(output.device.type))));
  return {};
}

}  // namespace lancet::runtime
