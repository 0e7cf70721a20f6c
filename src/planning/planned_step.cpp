#include "lancet/planning/planned_step.h"

#include <fmt/format.h>

#include <algorithm>

#include "lancet/backend/cpu/parallel.h"
#include "lancet/planning/from_config.h"
#include "lancet/planning/step_costs.h"
#include "lancet/profiler/profiler.h"

namespace lancet::planning {
namespace {

int local_ranks_of(const PlanTarget& place) { return (place.ranks + place.hosts - 1) / place.hosts; }

// True if the plan is for this machine and its ranks compute with more threads than it has cores.
bool is_crowded(const config::Config& config, const PlanTarget& place) {
  if (!place.hardware.empty() || !place.profile.empty() || config.device != config::Device::cpu) return false;
  const int local_ranks = local_ranks_of(place);
  return local_ranks * threads_of(config, local_ranks) > backend::cpu::cores();
}

// The profile in a file that the user names, of whatever device.
Result<cost::Profile> named_profile(const config::Config& config, const PlanTarget& target) {
  LANCET_ASSIGN(cost::Profile profile, cost::read_profile(target.profile));
  const cost::Device& device = profile.machine.device;
  // A rank that had its host to itself computes alone as it did among others.
  if (target.ranks == 1 && device.local_ranks == 1) profile = profile.on({device, {}});
  const cost::Cluster& cluster = profile.machine.cluster;
  const bool fits = cluster.ranks == target.ranks && cluster.hosts == target.hosts &&
                    (config.threads == 0 || device.threads == config.threads);
  if (fits && profile.complete()) return profile;
  return config_error(fmt::format(
      "{}: expected ops and communication measured with {} rank{} on {} host{}{}, found {} ops{} of {}; times of more "
      "ranks cannot be derived from those of fewer: measure them there with lancet profile",
      target.profile, target.ranks, target.ranks == 1 ? "" : "s", target.hosts, target.hosts == 1 ? "" : "s",
      config.threads > 0 ? fmt::format(" of {} thread{} each", config.threads, config.threads == 1 ? "" : "s") : "",
      profile.ops.size(), profile.network.measured() ? " and communication" : "", cost::to_string(profile.machine)));
}

Result<cost::Profile> profile_for(const config::Config& config, const PlanTarget& place, std::string& path) {
  path = place.profile;
  if (!path.empty()) return named_profile(config, place);
  const int local_ranks = local_ranks_of(place);
  const cost::Machine here{profiler::this_device(threads_of(config, local_ranks), local_ranks),
                           {place.ranks > 1 ? "mpi" : "self", place.ranks, place.hosts}};
  path = profile_path(config, place.profile_folder, here).string();
  return cost::read_profile(path, here);
}

Result<PlannedStep> planned(const config::Config& config, const PlanTarget& place, const cost::Costs& costs,
                            const std::string& origin) {
  PlannedStep result;
  result.crowded = is_crowded(config, place);
  auto plan = plan_step(config, place.ranks,
                        {.costs = &costs,
                         .crowded = result.crowded,
                         .compare = true,
                         .skip = place.skip,
                         .keep_texts = place.keep_texts},
                        &result.report);
  if (!plan.ok()) return Error{plan.error().code, origin + ": " + plan.error().message, false};
  result.plan = *std::move(plan);
  result.memory = resident_tensor_bytes(result.plan.program) + result.plan.arena_bytes;
  return result;
}

// Plans for a declared machine. Measured costs take precedence over declared ones.
Result<PlannedStep> plan_on(const config::Config& config, PlanTarget place) {
  LANCET_ASSIGN(cost::Hardware hardware, cost::read_hardware(place.hardware));
  if (place.hosts == 0) place.hosts = hardware.nodes(place.ranks);
  if (place.hosts > place.ranks)
    return config_error(fmt::format("--hosts: expected at most the {} ranks, found {}", place.ranks, place.hosts));
  std::optional<cost::Profile> measured;
  std::string path;
  if (!place.profile.empty()) {
    LANCET_ASSIGN(measured, profile_for(config, place, path));
  }
  const cost::HardwareCosts costs(hardware, {place.ranks, place.hosts}, measured);
  LANCET_ASSIGN(PlannedStep result, planned(config, place, costs, place.hardware));
  if (measured) result.profile = *std::move(measured);
  result.costs = costs.describe();
  result.available_gib = hardware.device.memory_gib - hardware.device.reserved_gib;
  return result;
}

}  // namespace

std::int64_t resident_tensor_bytes(const ir::Program& program) {
  std::int64_t bytes = 0;
  for (const ir::Tensor& tensor : program.tensors)
    if (tensor.number < 0) bytes += ir::bytes(tensor.type);
  return bytes;
}

Result<PlannedStep> plan_offline(const config::Config& config, const PlanTarget& wanted) {
  LANCET_TRY(config::check(config, wanted.ranks));
  if (!wanted.hardware.empty()) return plan_on(config, wanted);
  PlanTarget place = wanted;
  place.hosts = std::max(1, place.hosts);
  if (place.hosts > place.ranks)
    return config_error(fmt::format("--hosts: expected at most the {} ranks, found {}", place.ranks, place.hosts));
  std::string path;
  LANCET_ASSIGN(cost::Profile profile, profile_for(config, place, path));
  LANCET_ASSIGN(PlannedStep result, planned(config, place, profile, path));
  result.costs = cost::to_string(profile.machine);
  result.profile = std::move(profile);
  return result;
}

}  // namespace lancet::planning
