// Groups are split from their stream's communicator of all ranks, in the order of streams and axes, which is the same
// on all ranks. A group of all ranks uses that communicator, and a group of one rank needs none.
#include "lancet/world/stream_communicators.h"

#include <fmt/format.h>

#include <vector>

#include "lancet/ir/groups.h"

namespace lancet::world {
namespace {

// The attribute `shards` is the size of the instruction's group, on which the shapes of its tensors rest.
Status check_shards(const mesh::Mesh& mesh, const ir::Instruction& at) {
  if (!at.attributes.has("shards")) return {};
  const mesh::Axes axes = ir::group_of(at, mesh);
  const std::int64_t shards = at.attributes.integer("shards"), ranks = mesh.size(axes);
  if (shards == ranks) return {};
  return config_error(fmt::format("{} at {}: expected as many shards as ranks along {} of the mesh {}, {}, found {}",
                                  at.op, at.label, to_string(axes), to_string(mesh), ranks, shards));
}

}  // namespace

Result<Streams> Streams::make(const config::Config& config, comm::Communicator& world,
                              runtime::Accelerator* accelerator, const std::string& purpose) {
  Streams streams;
  streams.config_ = config;
  streams.purpose_ = purpose;
  streams.accelerator_ = accelerator;
  streams.timeout_ = std::chrono::milliseconds(static_cast<std::int64_t>(config.comm.timeout_s * 1000));
  world.set_timeout(streams.timeout_);
  streams.groups_[static_cast<std::size_t>(ir::Stream::compute)][""].group = {world.rank(), world.size()};
  for (const ir::Stream stream : {ir::Stream::expert, ir::Stream::reduce}) {
    LANCET_ASSIGN(auto communicator, world.duplicate());
    LANCET_ASSIGN(streams.groups_[static_cast<std::size_t>(stream)][""],
                  streams.open(std::move(communicator), std::string(ir::name(stream))));
  }
  return streams;
}

Result<Streams::OpenGroup> Streams::open(std::unique_ptr<comm::Communicator> host, const std::string& name) const {
  OpenGroup opened;
  host->set_timeout(timeout_);
  host->set_name(purpose_ + name);
  if (accelerator_) {
    LANCET_ASSIGN(opened.device, make_device_communicator(config_, *accelerator_, *host));
  }
  opened.host = std::move(host);
  opened.group = {opened.host->rank(), opened.host->size(), opened.host.get(), opened.device.get()};
  return opened;
}

Result<Streams::OpenGroup> Streams::open(const mesh::Mesh& mesh, mesh::Axes axes, ir::Stream stream) const {
  const OpenGroup& all = groups_[static_cast<std::size_t>(stream)].find("")->second;
  const int size = mesh.size(axes);
  OpenGroup opened;
  opened.group = all.group;
  if (size == all.group.size) return opened;
  opened.group = {mesh.place(all.group.place, axes), size};
  if (size == 1 || !all.host) return opened;
  LANCET_ASSIGN(auto communicator, all.host->split(mesh.group(all.group.place, axes)));
  return open(std::move(communicator), fmt::format("{}[{}]", ir::name(stream), mesh::to_string(axes)));
}

Status Streams::open_groups(const mesh::Mesh& mesh, const ir::Program& program) {
  const int ranks = groups_[0].find("")->second.group.size;
  if (mesh.ranks() != ranks)
    return config_error(fmt::format("mesh: expected {} ranks, found {}", ranks, mesh::to_string(mesh)));
  for (const ir::Instruction& at : program.instructions) LANCET_TRY(check_shards(mesh, at));
  const auto used = ir::used_axes(program);
  for (std::size_t stream = 0; stream < ir::stream_count; ++stream)
    for (const mesh::Axes axes : used[stream]) {
      const std::string text = mesh::to_string(axes);
      if (groups_[stream].contains(text)) continue;
      LANCET_ASSIGN(groups_[stream][text], open(mesh, axes, static_cast<ir::Stream>(stream)));
    }
  return {};
}

runtime::ExecutorOptions Streams::executor_options(int threads) const {
  runtime::ExecutorOptions options{.threads = threads, .groups = {}};
  options.accelerator = accelerator_;
  options.timeout = timeout_;
  for (std::size_t stream = 0; stream < ir::stream_count; ++stream)
    for (const auto& [axes, opened] : groups_[stream]) options.groups[stream][axes] = opened.group;
  return options;
}

comm::DeviceCommunicator* Streams::on_device(ir::Stream stream) const {
  return groups_[static_cast<std::size_t>(stream)].find("")->second.device.get();
}

void Streams::abort(const std::string& why) {
  std::vector<comm::DeviceCommunicator*> on_device;
  for (const OpenGroups& groups : groups_)
    for (const auto& [axes, opened] : groups) {
      if (opened.host) opened.host->abort(why);
      on_device.push_back(opened.device.get());
    }
  comm::abort_all(on_device, why);
}

}  // namespace lancet::world
