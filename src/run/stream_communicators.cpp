// Groups are split from their stream's communicator of all ranks, in the order of streams and axes, which is the same
// on all ranks. A group of all ranks uses that communicator, and a group of one rank needs none.
#include "lancet/run/stream_communicators.h"

#include <fmt/format.h>
#include <algorithm>
#include <cstdint>
#include <future>
#include <set>
#include <span>

#include "lancet/comm/collect.h"
#include "lancet/comm/communicator.h"
#include "lancet/cost/hardware.h"
#include "lancet/ir/groups.h"

namespace lancet::run {
namespace {

// The attribute `shards` is the size of the instruction's group, on which the shapes of its tensors rest.
Status check_shards(const ir::Mesh& mesh, const ir::Instruction& at) {
  if (!at.attributes.has("shards")) return {};
  const ir::Axes axes = ir::group_of(at, mesh);
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
                  streams.open(std::move(communicator), std::string(ir::name(stream)), int(config.comm.max_ctas)));
  }
  return streams;
}

Result<Streams::OpenGroup> Streams::open(std::unique_ptr<comm::Communicator> host, const std::string& name,
                                         int max_ctas) const {
  OpenGroup opened;
  host->set_timeout(timeout_);
  host->set_name(purpose_ + name);
  if (accelerator_) {
    LANCET_ASSIGN(opened.device, make_device_communicator(config_, *accelerator_, *host, max_ctas));
  }
  opened.host = std::move(host);
  opened.group = {opened.host->rank(), opened.host->size(), opened.host.get(), opened.device.get()};
  return opened;
}

Result<Streams::OpenGroup> Streams::open(const ir::Mesh& mesh, const std::string& key, ir::Stream stream) const {
  const OpenGroup& all = groups_[static_cast<std::size_t>(stream)].find("")->second;
  const std::vector<int> ranks = ir::ranks_of(key, mesh, all.group.place);
  // Ranks outside of the named stages split, too, off a group of their own.
  const bool alone = ranks.size() == 1 && key.find(':') == key.npos;
  OpenGroup opened;
  opened.group = all.group;
  if (int(ranks.size()) == all.group.size) return opened;
  opened.group = {int(std::ranges::lower_bound(ranks, all.group.place) - ranks.begin()), int(ranks.size())};
  if (alone || !all.host) return opened;
  LANCET_ASSIGN(auto communicator, all.host->split(ranks));
  return open(std::move(communicator), fmt::format("{}[{}]", ir::name(stream), key), int(config_.comm.max_ctas));
}

// Each link between stages is a pair of ranks with a communicator of its own for each direction. A rank is in two
// pairs, so those that begin with an even stage are split off first, then those that begin with an odd one, then those
// of the last stage and the first.
//
// A message of a link that NCCL carries holds its thread blocks from when it is queued until the other stage is there,
// and up to four wait at once. Few blocks leave the multiprocessors to computation, and with those of the other two
// streams they are fewer than a GPU has: messages that keep each other from starting would wait for ever.
Status Streams::open_links(const ir::Mesh& mesh) {
  constexpr int most_ctas = 4;
  const int max_ctas = config_.comm.max_ctas > 0 ? std::min(int(config_.comm.max_ctas), most_ctas) : most_ctas;
  using ir::Stream;
  const int stages = mesh[ir::Axis::stage];
  if (stages == 1 || !groups_[std::size_t(Stream::send_next)].empty()) return {};
  const OpenGroup& all = groups_[static_cast<std::size_t>(Stream::reduce)].find("")->second;
  const int rank = all.group.place, stage = mesh.coordinate(rank, ir::Axis::stage);
  const auto turn_of = [&](int first) { return first == stages - 1 ? 2 : first % 2; };
  for (const Stream of_first : {Stream::send_next, Stream::receive_next})
    for (const int turn : {0, 1, 2}) {
      const bool is_first = turn_of(stage) == turn, is_second = turn_of((stage + stages - 1) % stages) == turn;
      std::vector<int> members{rank};
      const Stream stream = is_first ? of_first : ir::opposite(of_first);
      if (is_first || is_second) members.push_back(ir::neighbour(mesh, rank, stream).value());
      std::ranges::sort(members);
      LANCET_ASSIGN(auto communicator, all.host->split(members));
      if (members.size() == 1) continue;
      LANCET_ASSIGN(OpenGroup link, open(std::move(communicator), std::string(ir::name(stream)), max_ctas));
      groups_[std::size_t(stream)][""].group = links_.emplace_back(std::move(link)).group;
    }
  return {};
}

Status Streams::open_groups(const ir::Mesh& mesh, const ir::Program& program) {
  return open_groups(mesh, std::vector{&program});
}

Status Streams::open_groups(const ir::Mesh& mesh, const std::vector<const ir::Program*>& programs) {
  const int ranks = groups_[0].find("")->second.group.size;
  if (mesh.ranks() != ranks)
    return config_error(fmt::format("mesh: expected {} ranks, found {}", ranks, ir::to_string(mesh)));
  std::array<std::set<std::string>, ir::stream_count> used;
  for (const ir::Program* program : programs) {
    for (const ir::Instruction& at : program->instructions) LANCET_TRY(check_shards(mesh, at));
    const auto of_program = ir::used_keys(*program);
    for (std::size_t stream = 0; stream < ir::stream_count; ++stream)
      used[stream].insert(of_program[stream].begin(), of_program[stream].end());
  }
  for (std::size_t stream = 0; stream < ir::stream_count; ++stream)
    for (const std::string& key : used[stream]) {
      if (groups_[stream].contains(key)) continue;
      LANCET_ASSIGN(groups_[stream][key], open(mesh, key, static_cast<ir::Stream>(stream)));
    }
  return open_links(mesh);
}

runtime::ExecutorOptions Streams::executor_options(int threads) const {
  runtime::ExecutorOptions options{.threads = threads, .groups = {}};
  options.accelerator = accelerator_;
  options.timeout = timeout_;
  for (std::size_t stream = 0; stream < ir::stream_count; ++stream)
    for (const auto& [axes, opened] : groups_[stream]) options.groups[stream][axes] = opened.group;
  return options;
}

comm::DeviceCommunicator* Streams::on_device(ir::Stream stream, const ir::Mesh& mesh, ir::Axes axes) const {
  const OpenGroups& groups = groups_[static_cast<std::size_t>(stream)];
  const auto found = groups.find((axes & mesh.wide()) == mesh.wide() ? "" : ir::to_string(axes));
  return found == groups.end() ? nullptr : found->second.group.device_comm;
}

// The mirrored communicator gets the duration of each call from two functions. Here they apply the
// cost model of the declared hardware (cost/hardware.h) to the bytes sent, and add the result to `times`.
Result<std::unique_ptr<comm::Communicator>> mirrored_world(const config::Config& config,
                                                           const comm::Communicator& world, DeclaredTimes* times) {
  if (config.comm.transport != config::Transport::mirrored) return std::unique_ptr<comm::Communicator>();
  if (world.size() > 1)
    return config_error(fmt::format(
        "comm.transport: expected one process for \"mirrored\", which stands for all ranks, found {}", world.size()));
  const int ranks = static_cast<int>(config.comm.mirrored_ranks);
  LANCET_TRY(config::check(config, std::max(ranks, 1)));  // requires mirrored_ranks and network
  LANCET_ASSIGN(const cost::Hardware hardware, cost::read_hardware(config.comm.network));
  const cost::Layout layout{ranks, hardware.nodes(ranks)};
  const auto counted = [times](std::atomic<double> DeclaredTimes::*kind, double ms) {
    if (times) (times->*kind).fetch_add(ms, std::memory_order_relaxed);
    return ms;
  };
  return comm::make_mirrored_world(
      ranks,
      {.name = hardware.name,
       .all_to_all_ms =
           [=](std::span<const int> members, double bytes) {
             return counted(&DeclaredTimes::all_to_alls, cost::all_to_all_ms(hardware, layout.group(members), bytes));
           },
       .all_reduce_ms =
           [=](std::span<const int> members, double bytes) {
             return counted(&DeclaredTimes::all_reduces, cost::all_reduce_ms(hardware, layout.group(members), bytes));
           }});
}

// After each turn all ranks join a small collective, "is the work done on any rank?"; it keeps every wait shorter than
// comm.timeout_s and fails if a rank has ended.
std::chrono::milliseconds turn_of(const config::Config& config) {
  return std::chrono::milliseconds(std::clamp<std::int64_t>(std::int64_t(config.comm.timeout_s * 250), 1, 200));
}

Status run_on_rank0(comm::Communicator& world, std::chrono::milliseconds turn, const std::function<void()>& work) {
  if (world.size() == 1) {
    work();
    return {};
  }
  std::future<void> working;
  if (world.rank() == 0) working = std::async(std::launch::async, work);
  for (bool done = false; !done;) {
    const bool mine = working.valid() && working.wait_for(turn) == std::future_status::ready;
    LANCET_ASSIGN(done, any(world, mine));
  }
  if (working.valid()) working.get();
  return {};
}

}  // namespace lancet::run
