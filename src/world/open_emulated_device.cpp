#include "lancet/world/open_emulated_device.h"

#include <fmt/format.h>

#include "lancet/world/agree.h"

namespace lancet::world {
namespace {

Result<std::unique_ptr<runtime::EmulatedDevice>> open(const config::Config& config, const comm::Communicator& world,
                                                      int local_ranks) {
  LANCET_ASSIGN(const cost::Hardware node, cost::read_hardware(config.emulated.hardware));
  if (local_ranks > node.node.devices)
    return config_error(
        fmt::format("emulated.hardware: expected at most {} ranks on a host, the devices of a node of {}, "
                    "found {}",
                    node.node.devices, node.name, local_ranks));
  const config::Model& model = config.model;
  return runtime::EmulatedDevice::create({.hardware = node.part_of_node(local_ranks),
                                          .layout = {world.size(), (world.size() + local_ranks - 1) / local_ranks},
                                          .rank = world.rank(),
                                          .scale = config.emulated.scale,
                                          .dilation = config.emulated.dilation,
                                          .routing = config.emulated.routing,
                                          .seed = static_cast<std::uint64_t>(config.train.seed),
                                          .layers = static_cast<int>(model.moe_layers()),
                                          .experts = model.experts(world.size()),
                                          .capacity = model.capacity_factor});
}

}  // namespace

Result<std::unique_ptr<runtime::EmulatedDevice>> open_emulated_device(const config::Config& config,
                                                                      comm::Communicator& world, int local_ranks) {
  if (config.device != config::Device::emulated) return std::unique_ptr<runtime::EmulatedDevice>();
  auto device = open(config, world, local_ranks);
  LANCET_TRY(agree(world, device.ok() ? Status() : Status(device.error())));
  LANCET_TRY((*device)->calibrate(world));
  return device;
}

}  // namespace lancet::world
