// Each rank opens the GPU that its launcher's local rank selects; then the ranks compare the identities of their GPUs.
// The comparison also catches launchers that show every rank only one GPU, numbered 0, when that GPU is the same for
// two ranks. Errors pass through agree(), so that all ranks end with the same one.
#include "lancet/run/rank_device.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>
#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "lancet/backend/cpu/parallel.h"
#include "lancet/base/hash.h"
#include "lancet/base/log.h"
#include "lancet/comm/collect.h"

namespace lancet::run {
namespace {

using config::Transport;

// The number of this rank's GPU. A launcher may show each rank only its own GPU, which is then number 0.
Result<int> device_number(int found, const comm::Launch& launch, bool shared) {
  if (found >= launch.local_size) return launch.local_rank;
  if (found == 1 || shared) return launch.local_rank % found;  // check_one_each() compares the GPUs
  return config_error(fmt::format("device: expected {} GPUs for the {} ranks of this host, found {}", launch.local_size,
                                  launch.local_size, found));
}

// Ranks may share a GPU only if their messages go through host memory.
bool may_share(const config::Config& config) { return config.comm.transport == Transport::mpi; }

Result<std::unique_ptr<runtime::Accelerator>> open_own_gpu(const config::Config& config, const DeviceSource& source) {
  LANCET_ASSIGN(const runtime::AcceleratorModule* module, source.load());
  LANCET_ASSIGN(const int found, module->count());
  LANCET_ASSIGN(const int number, device_number(found, source.launch, may_share(config)));
  return runtime::open_device(*module, number, config.mesh.stage);
}

// Config error: two ranks have the same GPU and may not share it. Collective.
Status check_one_each(comm::Communicator& world, runtime::Accelerator& accelerator, bool shared) {
  const std::string mine = accelerator.device().identity();
  LANCET_ASSIGN(const auto all, comm::collect(world, hash64(mine)));
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    for (std::size_t other = 0; other < rank; ++other) {
      if (all[rank] != all[other]) continue;
      if (shared) {
        log::warn("ranks {} and {} share a GPU", other, rank);
        return {};
      }
      LANCET_ASSIGN(const std::string which,
                    broadcast_text(world, fmt::format("{} ({})", accelerator.device().name(), mine), int(rank)));
      Error error = config_error(fmt::format(
          "device: expected a GPU for each rank, found ranks {} and {} on the same {}", other, rank, which));
      error.agreed = true;
      return error;
    }
  return {};
}

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

struct Rank {
  std::uint64_t set = 0;  // hash of the kernel's boot and of the affinity
  int threads = 0, cores = 0;
};

std::uint64_t set_of_cores() {
  std::string text;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), text);
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (::sched_getaffinity(0, sizeof cores, &cores) == 0)
    text.append(reinterpret_cast<const char*>(&cores), sizeof cores);
  return hash64(text);
}

}  // namespace

Status check_transport(const config::Config& config, const comm::Communicator& world) {
  if (config.comm.transport == Transport::mpi && world.transport() == "self")
    return config_error(
        "comm.transport: expected a start by mpirun or srun with several ranks for mpi, found one rank alone");
  if (config.comm.transport == Transport::self && world.size() > 1)
    return config_error(fmt::format("comm.transport: expected one rank for self, found {}", world.size()));
  return {};
}

Result<std::unique_ptr<runtime::Accelerator>> open_accelerator(const config::Config& config, comm::Communicator& world,
                                                               const DeviceSource& source) {
  if (config.device != config::Device::cuda) return std::unique_ptr<runtime::Accelerator>();
  auto mine = open_own_gpu(config, source);
  LANCET_TRY(agree(world, mine.ok() ? Status() : Status(mine.error())));
  if (config.comm.transport != Transport::mirrored)  // whose ranks are all this one
    LANCET_TRY(check_one_each(world, **mine, may_share(config)));
  (*mine)->allow_tf32(config.train.tf32);
  if (const std::string libraries = (*mine)->libraries(); !libraries.empty()) log::info("libraries  {}", libraries);
  return mine;
}

Result<std::span<std::byte>> make_arena_window(const config::Config& config, comm::DeviceCommunicator* expert,
                                               std::size_t bytes) {
  if (!expert || config.comm.device_all_to_all == config::DeviceAllToAll::counted) return std::span<std::byte>();
  const auto made = expert->make_window(bytes);
  if (!made.ok() && !made.error().agreed) return made.error();
  if (made.ok() && !made->empty()) return *made;
  const std::string why = made.ok() ? std::string() : ": " + made.error().message;
  if (config.comm.device_all_to_all == config::DeviceAllToAll::automatic) {
    if (!why.empty()) log::info("all-to-alls  by counts that the host knows{}", why);
    return std::span<std::byte>();
  }
  Error error = config_error(
      fmt::format("comm.device_all_to_all: expected GPUs that reach each other's memory and NCCL 2.28 or later for "
                  "windows, found {} ranks by {} without{}; counted or auto need neither",
                  expert->size(), expert->transport(), why));
  error.agreed = true;  // a window is on all ranks of the group or on none
  return error;
}

std::string describe_all_to_alls(const config::Config& config) {
  const bool automatic = config.comm.device_all_to_all == config::DeviceAllToAll::automatic;
  return fmt::format("all-to-alls  through windows{}",
                     automatic ? ": the ranks reach each other's memory" : "; comm.device_all_to_all=windows");
}

Result<std::unique_ptr<comm::DeviceCommunicator>> make_device_communicator(const config::Config& config,
                                                                           runtime::Accelerator& accelerator,
                                                                           comm::Communicator& host, int max_ctas) {
  const Transport transport = config.comm.transport;
  if (host.size() == 1 && transport != Transport::mirrored) return std::unique_ptr<comm::DeviceCommunicator>();
  const comm::DeviceStream wanted{
      .device = &accelerator.device(),
      .host = &host,
      .max_ctas = max_ctas,
      .timeout = std::chrono::milliseconds(static_cast<std::int64_t>(config.comm.timeout_s * 1000))};
  return transport == Transport::mpi        ? comm::make_staged(wanted)
         : transport == Transport::mirrored ? comm::make_mirrored(wanted)
                                            : accelerator.make_communicator(wanted);
}

cost::RoutedModel routed_model(const config::Config& config, const cost::Layout& layout) {
  const config::Model& model = config.model;
  const ir::Mesh mesh = config::mesh_of(config, layout.ranks);
  cost::RoutedModel routed{.experts = model.experts(mesh[ir::Axis::expert]),
                           .choices = model.num_experts_per_tok,
                           .ranks = mesh[ir::Axis::expert],
                           .hosts = std::vector<std::vector<int>>(std::size_t(layout.hosts)),
                           .slots = model.experts_choose() ? 1 : model.buffer_factor(),
                           .in_rounds = !model.capacity_factor,
                           .micro_batches = int(config.train.gradient_accumulation_steps),
                           .seed = static_cast<std::uint64_t>(config.train.seed)};
  for (std::int64_t block = 0; block < model.n_layer; ++block)
    if (model.is_moe(block)) routed.blocks.push_back(int(block));
  for (int rank = 0; rank < layout.ranks; ++rank)
    routed.hosts[std::size_t(rank / layout.on_host())].push_back(mesh.coordinate(rank, ir::Axis::expert));
  return routed;
}

// Experts that choose fill all their slots, whatever the scores.
Result<std::shared_ptr<const cost::Loads>> read_loads(const std::string& what, const std::string& text,
                                                      const config::Config& config, const cost::Layout& layout) {
  LANCET_ASSIGN(cost::Loads loads,
                cost::Loads::read(what, config.model.experts_choose() ? "even" : text, routed_model(config, layout)));
  return std::make_shared<const cost::Loads>(std::move(loads));
}

Result<std::unique_ptr<runtime::EmulatedDevice>> make_emulated_device(const config::Config& config,
                                                                      const cost::Layout& ranks_on_hosts, int rank,
                                                                      std::shared_ptr<const cost::Loads> loads) {
  cost::Layout layout = ranks_on_hosts;
  layout.mesh = config::mesh_of(config, layout.ranks);
  LANCET_ASSIGN(std::vector<cost::Hardware> hosts, read_hosts(config.emulated.hardware, layout));
  if (!loads) {
    LANCET_ASSIGN(loads, read_loads("emulated.routing", config.emulated.routing, config, layout));
  }
  return std::make_unique<runtime::EmulatedDevice>(
      runtime::EmulatedDevice::Options{.hosts = std::move(hosts),
                                       .layout = layout,
                                       .rank = rank,
                                       .scale = config.emulated.scale,
                                       .dilation = config.emulated.dilation,
                                       .loads = std::move(loads)});
}

Result<std::unique_ptr<runtime::EmulatedDevice>> open_emulated_device(const config::Config& config,
                                                                      comm::Communicator& world, int local_ranks) {
  if (config.device != config::Device::emulated) return std::unique_ptr<runtime::EmulatedDevice>();
  const cost::Layout layout{world.size(), cost::hosts_of(world.size(), local_ranks)};
  auto device = make_emulated_device(config, layout, world.rank());
  LANCET_TRY(agree(world, device.ok() ? Status() : Status(device.error())));
  return device;
}

Result<SharedCores> shared_cores(comm::Communicator& world, int threads) {
  LANCET_ASSIGN(const std::vector<Rank> ranks,
                comm::collect(world, Rank{set_of_cores(), threads, backend::cpu::cores()}));
  SharedCores fullest{0, 1};
  for (const Rank& rank : ranks) {
    SharedCores shared{0, rank.cores};
    for (const Rank& other : ranks)
      if (other.set == rank.set) shared.threads += other.threads;
    if (shared.threads * fullest.cores > fullest.threads * shared.cores) fullest = shared;
  }
  return fullest;
}

// The host's free memory is MemAvailable of /proc/meminfo; control groups are read from /sys/fs/cgroup. The limit of a
// group applies to all groups below it, so the search walks from the process's group up to the root.
namespace {

using std::filesystem::path;

constexpr std::int64_t no_limit = std::numeric_limits<std::int64_t>::max();

// The number in a file; empty for "max", which cgroup v2 writes for no limit.
std::optional<std::int64_t> number_in(const path& file) {
  std::ifstream in(file);
  std::int64_t number = 0;
  if (in >> number) return number;
  return std::nullopt;
}

// The number after `key` in a file of "key value" lines; 0 if the key is missing.
std::int64_t entry(const path& file, const std::string& key) {
  std::ifstream in(file);
  std::string name;
  for (std::int64_t value = 0; in >> name >> value;)
    if (name == key) return value;
  return 0;
}

// File names and keys of the two cgroup versions.
struct Names {
  const char *limit, *used, *cache;
};
constexpr Names v1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr Names v2{"memory.max", "memory.current", "inactive_file"};

enum class Memory { in_all, free };

// Bytes under the limits of this group and of each group above it. The usage includes inactive file pages, which are
// subtracted because the kernel drops them first.
std::int64_t left_in(const path& mount, const path& group, const Names& names, Memory memory) {
  std::int64_t left = no_limit;
  for (path inner = group.relative_path();; inner = inner.parent_path()) {
    const path folder = mount / inner;
    if (const auto limit = number_in(folder / names.limit), used = number_in(folder / names.used); limit && used) {
      const std::int64_t kept = std::max<std::int64_t>(0, *used - entry(folder / "memory.stat", names.cache));
      left = std::min(left, std::max<std::int64_t>(0, *limit - (memory == Memory::free ? kept : 0)));
    }
    if (inner.empty()) return left;
  }
}

// Bytes under the limits of the process's groups. A line of /proc/self/cgroup is "0::/user.slice" (v2) or
// "9:cpu,memory:/docker/1f3" (v1). In a container that path may be the host's; the container's own group is then the
// mount itself, which left_in reads too.
std::int64_t left_in_groups(const path& root, Memory memory) {
  std::ifstream in(root / "proc/self/cgroup");
  std::int64_t left = no_limit;
  for (std::string line; std::getline(in, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const path group = line.substr(second + 1);
    if (controllers == ",,") left = std::min(left, left_in(root / "sys/fs/cgroup", group, v2, memory));
    if (controllers.find(",memory,") != controllers.npos)
      left = std::min(left, left_in(root / "sys/fs/cgroup/memory", group, v1, memory));
  }
  return left;
}

// Of the host, or less if a control group allows less. key: of /proc/meminfo.
std::optional<std::int64_t> host_bytes(const path& root, std::string_view key, Memory memory) {
  std::int64_t bytes = no_limit;
  std::ifstream meminfo(root / "proc/meminfo");
  for (std::string line; std::getline(meminfo, line);)
    if (std::int64_t kilobytes = 0;
        line.starts_with(key) && std::sscanf(line.c_str() + key.size(), ": %ld", &kilobytes) == 1)
      bytes = kilobytes * 1024;
  const std::int64_t left = std::min(bytes, left_in_groups(root, memory));
  return left == no_limit ? std::nullopt : std::optional(left);
}

// Shares of the memory that a plan may take. The rest is for libraries, buffers of messages and what else a host runs.
constexpr double share_of_device = 0.9, share_of_host = 0.75;

}  // namespace

std::int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

std::optional<std::int64_t> available_bytes(const path& root) { return host_bytes(root, "MemAvailable", Memory::free); }

std::int64_t bytes_for_plans(int local_ranks, const backend::Device* device, const path& root) {
  if (device) return std::int64_t(share_of_device * double(device->memory_bytes()));
  const auto bytes = host_bytes(root, "MemTotal", Memory::in_all);
  return bytes ? std::int64_t(share_of_host * double(*bytes)) / local_ranks : 0;
}

Status check_memory(std::int64_t needed, int local_ranks, std::string_view what) {
  const auto available = available_bytes();
  if (!available || needed <= *available / local_ranks) return {};
  return config_error(fmt::format("expected {} MB of free memory a rank for {}, found {} MB", needed / 1'000'000, what,
                                  *available / local_ranks / 1'000'000));
}

}  // namespace lancet::run
