#include "lancet/world/open_emulated_device.h"

#include <fmt/format.h>

#include "lancet/world/agree.h"

namespace lancet::world {

Result<std::unique_ptr<runtime::EmulatedDevice>> make_emulated_device(const config::Config& config,
                                                                      const cost::Layout& layout, int rank) {
  const int local_ranks = layout.on_host();
  LANCET_ASSIGN(const cost::Hardware node, cost::read_hardware(config.emulated.hardware));
  if (local_ranks > node.node.devices)
    return config_error(
        fmt::format("emulated.hardware: expected at most {} ranks on a host, the devices of a node of {}, "
                    "found {}",
                    node.node.devices, node.name, local_ranks));
  const config::Model& model = config.model;
  return runtime::EmulatedDevice::create({.hardware = node.part_of_node(local_ranks, layout.hosts),
                                          .layout = layout,
                                          .rank = rank,
                                          .scale = config.emulated.scale,
                                          .dilation = config.emulated.dilation,
                                          .routing = config.emulated.routing,
                                          .seed = static_cast<std::uint64_t>(config.train.seed),
                                          .layers = static_cast<int>(model.moe_layers()),
                                          .experts = model.experts(layout.ranks),
                                          .capacity = model.capacity_factor});
}

Result<std::unique_ptr<runtime::EmulatedDevice>> open_emulated_device(const config::Config& config,
                                                                      comm::Communicator& world, int local_ranks) {
  if (config.device != config::Device::emulated) return std::unique_ptr<runtime::EmulatedDevice>();
  const int hosts = (world.size() + local_ranks - 1) / local_ranks;
  auto device = make_emulated_device(config, {world.size(), hosts}, world.rank());
  LANCET_TRY(agree(world, device.ok() ? Status() : Status(device.error())));
  LANCET_TRY((*device)->calibrate(world));
  return device;
}

}  // namespace lancet::world
