// Ranks must measure the same ops in the same order, since communication is measured together. So the profile and its
// machine come from rank 0, which broadcasts its file as text. The file changes once, after all that is missing was
// measured or the run was asked to stop; that it can be written is checked before, so that a wrong path is an error
// before minutes of work.
#include "lancet/run/step_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "lancet/backend/cpu/parallel.h"
#include "lancet/base/files.h"
#include "lancet/base/hash.h"
#include "lancet/base/log.h"
#include "lancet/comm/collect.h"
#include "lancet/planner/from_config.h"
#include "lancet/profiler/profiler.h"
#include "lancet/run/rank_device.h"
#include "lancet/run/stream_communicators.h"
#include "lancet/schedule/plan_memory.h"

namespace lancet::run {
namespace {

Result<cost::Profile> share_profile(comm::Communicator& world, const Result<cost::Profile>& mine) {
  LANCET_TRY(comm::broadcast_status(world, mine.ok() ? Status() : Status(mine.error()), 0));
  LANCET_ASSIGN(const std::string text, broadcast_text(world, cost::print(*mine), 0));
  return cost::parse_profile(text, "rank 0's profile");
}

// Whether measured times can be kept in the file. If not, a warning says so, or, where the user named the file, an
// error.
Result<bool> can_keep(const config::Config& config, const std::filesystem::path& path) {
  if (path.empty()) {
    log::warn("profile: not kept: HOME is not set, and overlap.profile names no file");
    return false;
  }
  const Status writable = check_writable(path);
  if (writable.ok()) return true;
  if (!config.overlap.profile.empty()) return config_error(writable.error().message);
  log::warn("profile: not kept: {}", writable.error().message);
  return false;
}

// The transport's name in a profile. It holds the number of NCCL's blocks or the mirrored network, which decide the
// time of a message between accelerators.
std::string device_transport(const config::Config& config, const comm::Communicator& world) {
  using config::Transport;
  const Transport transport = config.comm.transport;
  if (transport == Transport::mirrored) return world.transport();
  if (world.size() == 1) return "self";
  if (transport == Transport::mpi) return "mpi";
  return config.comm.max_ctas > 0 ? fmt::format("nccl with {} CTAs", config.comm.max_ctas) : "nccl";
}

}  // namespace

int threads_of(const config::Config& config, int local_ranks) {
  if (config.threads > 0) return static_cast<int>(config.threads);
  return std::max(1, backend::cpu::cores() / local_ranks);
}

cost::Machine machine_of(const config::Config& config, const comm::Communicator& world, int local_ranks,
                         runtime::Accelerator* accelerator) {
  const int hosts = cost::hosts_of(world.size(), local_ranks);
  if (!accelerator)
    return {profiler::this_device(threads_of(config, local_ranks), local_ranks),
            {world.transport(), world.size(), hosts}};
  cost::Device device = profiler::device_of(*accelerator);
  if (config.train.tf32 && config.train.dtype == DType::f32) device.isa += " tf32";
  return {std::move(device), {device_transport(config, world), world.size(), hosts}};
}

std::filesystem::path profile_path(const config::Config& config, const std::string& folder,
                                   const cost::Machine& machine) {
  if (!config.overlap.profile.empty()) return config.overlap.profile;
  return default_profile_path(folder, machine);
}

// The name leaves the build out, so that the times of a new build replace those of the old one.
std::filesystem::path default_profile_path(const std::string& folder, const cost::Machine& machine) {
  if (folder.empty()) return {};
  cost::Machine of_any_build = machine;
  of_any_build.device.build.clear();
  return std::filesystem::path(folder) / fmt::format("profile-{}.json", hex(hash64(cost::to_string(of_any_build))));
}

Result<int> agreed_hosts(comm::Communicator& world, int local_ranks) {
  LANCET_ASSIGN(const std::vector<int> on_host, comm::collect(world, local_ranks));
  const bool even = std::ranges::all_of(on_host, [&](int ranks) { return ranks == on_host.front(); });
  return even ? cost::hosts_of(world.size(), on_host.front()) : 1;
}

Status take_product_choices(const config::Config& config, comm::Communicator& world, const ProfileRequest& request) {
  if (!request.accelerator) return {};
  const cost::Machine machine = machine_of(config, world, request.local_ranks, request.accelerator);
  const std::filesystem::path path = profile_path(config, request.profile_folder, machine);
  Result<cost::Profile> held = cost::Profile(machine);
  std::error_code error;
  if (world.rank() == 0 && std::filesystem::exists(path, error)) held = cost::read_profile(path);
  if (held.ok()) held = held->on(machine);
  LANCET_ASSIGN(const cost::Profile profile, share_profile(world, held));
  const Status taken = request.accelerator->add_product_choices(profile.products);
  return comm::agree(world, taken.ok() ? taken : config_error(path.string() + ": products: " + taken.error().message));
}

Result<cost::Profile> ensure_profile(const config::Config& config, comm::Communicator& world,
                                     std::span<const ir::Program> programs, const ProfileRequest& request) {
  const cost::Machine machine = machine_of(config, world, request.local_ranks, request.accelerator);
  const std::filesystem::path path = profile_path(config, request.profile_folder, machine);
  Result<cost::Profile> held = cost::Profile(machine);
  if (!path.empty() && world.rank() == 0) {
    const bool all = request.renew == ProfileRequest::Renew::all;
    held = all ? cost::read_profile_to_replace(path, machine) : cost::read_profile_or_empty(path, machine);
    if (held.ok() && all) held->ops.clear(), held->products.clear();
    if (held.ok() && request.renew != ProfileRequest::Renew::nothing) held->network = {};
  }
  LANCET_ASSIGN(cost::Profile profile, share_profile(world, held));
  profile.mesh = config::mesh_of(config, world.size());
  LANCET_ASSIGN(const int hosts, agreed_hosts(world, request.local_ranks));
  profile.even_hosts = hosts == profile.machine.cluster.hosts;

  std::vector<ir::Plan> plans;
  for (const ir::Program& program : programs)
    plans.push_back(schedule::plan_memory_sequentially(ir::inline_bodies(program)));
  const int threads = threads_of(config, request.local_ranks);
  std::optional<run::Streams> streams;  // those of a run
  runtime::ExecutorOptions options;
  if (world.size() > 1) {
    LANCET_ASSIGN(streams, run::Streams::make(config, world, request.accelerator, "profile."));
    std::vector<const ir::Program*> named;
    for (const ir::Program& program : programs) named.push_back(&program);
    LANCET_TRY(streams->open_groups(profile.mesh, named));
    options = streams->executor_options(threads);
  }
  Result<bool> keeps = false;  // on rank 0
  const auto missing = profiler::missing_ops(plans, profile);
  if (world.rank() == 0 && profiler::lacks_times(plans, profile, world.size())) keeps = can_keep(config, path);
  LANCET_TRY(comm::broadcast_status(world, keeps.ok() ? Status() : Status(keeps.error()), 0));
  if (!missing.empty() && world.rank() == 0)
    log::info("profile: measuring {} op{}; this takes some steps' time, once", missing.size(),
              missing.size() == 1 ? "" : "s");
  profiler::ProfilerOptions measuring{.threads = threads,
                                      .accelerator = request.accelerator,
                                      .world = &world,
                                      .streams = options.groups,
                                      .timeout = options.timeout,
                                      .seconds = request.seconds,
                                      .interrupted = request.interrupted};
  const Result<profiler::ProfilerReport> report = profiler::fill_profile(profile, plans, measuring);
  const bool interrupted = !report.ok() && report.error().code == ExitCode::saved;
  if (!report.ok() && !interrupted) return report.error();
  if (report.ok() && report->ops == 0 && !report->network) return profile;
  Status written;
  if (*keeps) {
    const bool network_renewed = request.renew == ProfileRequest::Renew::communication;
    written = request.renew == ProfileRequest::Renew::all ? cost::write_profile(path, profile)
                                                          : cost::add_to_profile(path, profile, network_renewed);
    if (!written.ok() && config.overlap.profile.empty()) {
      log::warn("profile: not kept: {}", written.error().message);
      written = {};
      keeps = false;
    }
  }
  LANCET_TRY(comm::broadcast_status(world, written, 0));
  if (interrupted) return report.error();
  log::info("profile: measured {} op{}{} in {:.1f} s{}{}{}", report->ops, report->ops == 1 ? "" : "s",
            report->network ? " and communication" : "", report->seconds,
            report->seconds_of_choices >= 0.1
                ? fmt::format(", {:.1f} s of it for algorithms of products", report->seconds_of_choices)
                : "",
            report->network ? fmt::format(", {:.1f} s for communication", report->seconds_of_network) : "",
            *keeps ? ", kept in " + path.string() : "");
  return profile;
}

double largest_peak_tflops(const config::Config& config, const cost::Machine& machine, const std::string& folder,
                           double measured) {
  const std::filesystem::path path = default_profile_path(folder, machine);
  std::error_code error;
  cost::Profile profile(machine);
  if (std::filesystem::exists(path, error)) {
    const auto held = cost::read_profile(path);
    if (!held.ok()) log::warn("peak: not kept: {}", held.error().message);
    if (!held.ok()) return measured;
    if (held->machine == machine) profile = *held;
    cost::Machine before = held->machine;  // of another build, perhaps, whose op times do not hold
    before.device.build = machine.device.build;
    if (before == machine) profile.peak_tflops = held->peak_tflops;
  }
  double& largest = profile.peak_tflops[std::string(name(config.train.dtype))];
  if (largest >= measured) return largest;
  largest = measured;
  if (const Status kept = path.empty() ? Status() : cost::add_to_profile(path, profile); !kept.ok())
    log::warn("peak: not kept: {}", kept.error().message);
  return measured;
}

Result<MeasuredStep> measure_step(const config::Config& config, comm::Communicator& launched,
                                  const ProfileRequest& request) {
  if (config.device == config::Device::emulated)
    return config_error("device: expected cpu or cuda, found emulated, whose times are declared and not measured");
  LANCET_ASSIGN(const auto mirrored, run::mirrored_world(config, launched));
  comm::Communicator& world = mirrored ? *mirrored : launched;
  LANCET_TRY(comm::agree(world, config::check(config, world.size())));
  LANCET_TRY(comm::agree(world, run::check_transport(config, world)));
  ProfileRequest with_device = request;
  std::unique_ptr<runtime::Accelerator> accelerator;
  if (!request.accelerator) {
    LANCET_ASSIGN(accelerator, run::open_accelerator(config, world));
    with_device.accelerator = accelerator.get();
  }
  MeasuredStep step;
  LANCET_ASSIGN(const int hosts, agreed_hosts(world, request.local_ranks));
  LANCET_ASSIGN(step.programs, planner::programs_to_profile({config, world.size()}, hosts));
  LANCET_ASSIGN(step.profile, ensure_profile(config, world, step.programs, with_device));
  return step;
}

}  // namespace lancet::run
