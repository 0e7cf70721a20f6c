#include "lancet/run/open_emulated_device.h"

#include <fmt/format.h>

#include <sstream>

#include "lancet/comm/agree.h"

namespace lancet::run {

namespace {

// The hardware of all hosts, or of each: names with semicolons between them.
Result<std::vector<cost::Hardware>> read_hosts(const std::string& names, const cost::Layout& layout) {
  std::vector<cost::Hardware> hosts;
  std::istringstream list(names);
  for (std::string name; std::getline(list, name, ';');) {
    LANCET_ASSIGN(const cost::Hardware node, cost::read_hardware(name));
    if (layout.on_host() > node.node.devices)
      return config_error(
          fmt::format("emulated.hardware: expected at most {} ranks on a host, the devices of a node of {}, found {}",
                      node.node.devices, node.name, layout.on_host()));
    hosts.push_back(node.part_of_node(layout.on_host(), layout.hosts));
  }
  if (hosts.size() != 1 && std::ssize(hosts) != layout.hosts)
    return config_error(fmt::format("emulated.hardware: expected one name, or one for each of {} hosts, found {}",
                                    layout.hosts, hosts.size()));
  return hosts;
}

}  // namespace

Result<std::unique_ptr<runtime::EmulatedDevice>> make_emulated_device(const config::Config& config,
                                                                      const cost::Layout& ranks_on_hosts, int rank) {
  cost::Layout layout = ranks_on_hosts;
  layout.mesh = config::mesh_of(config, layout.ranks);
  LANCET_ASSIGN(std::vector<cost::Hardware> hosts, read_hosts(config.emulated.hardware, layout));
  const config::Model& model = config.model;
  std::vector<int> blocks;
  for (std::int64_t block = 0; block < model.n_layer; ++block)
    if (model.is_moe(block)) blocks.push_back(int(block));
  const bool even = model.experts_choose();  // all slots are filled, whatever the scores
  return runtime::EmulatedDevice::create({.hosts = std::move(hosts),
                                          .layout = layout,
                                          .rank = rank,
                                          .scale = config.emulated.scale,
                                          .dilation = config.emulated.dilation,
                                          .routing = even ? "even" : config.emulated.routing,
                                          .seed = static_cast<std::uint64_t>(config.train.seed),
                                          .blocks = std::move(blocks),
                                          .experts = model.experts(layout.mesh[ir::Axis::expert]),
                                          .choices = model.num_experts_per_tok,
                                          .capacity = even ? 1 : model.kept_factor(),
                                          .micro_batches = int(config.train.gradient_accumulation_steps)});
}

Result<std::unique_ptr<runtime::EmulatedDevice>> open_emulated_device(const config::Config& config,
                                                                      comm::Communicator& world, int local_ranks) {
  if (config.device != config::Device::emulated) return std::unique_ptr<runtime::EmulatedDevice>();
  const cost::Layout layout{world.size(), cost::hosts_of(world.size(), local_ranks)};
  auto device = make_emulated_device(config, layout, world.rank());
  LANCET_TRY(agree(world, device.ok() ? Status() : Status(device.error())));
  return device;
}

}  // namespace lancet::run
