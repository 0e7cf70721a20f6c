#include "lancet/planning/planned_step.h"

#include <fmt/format.h>

#include <algorithm>

#include "lancet/backend/cpu/parallel.h"
#include "lancet/planning/from_config.h"
#include "lancet/planning/step_costs.h"
#include "lancet/profiler/profiler.h"
#include "lancet/schedule/all_to_all_choice.h"

namespace lancet::planning {
namespace {

int local_ranks_of(const PlanTarget& place) { return (place.ranks + place.hosts - 1) / place.hosts; }

// True if the plan is for this machine and its ranks compute with more threads than it has cores.
bool is_crowded(const config::Config& config, const PlanTarget& place) {
  if (!place.hardware.empty() || !place.profile.empty() || config.device != config::Device::cpu) return false;
  const int local_ranks = local_ranks_of(place);
  return local_ranks * threads_of(config, local_ranks) > backend::cpu::cores();
}

Result<cost::Profile> profile_for(const config::Config& config, const PlanTarget& place, std::string& path) {
  const int local_ranks = local_ranks_of(place);
  const cost::Machine here{profiler::this_device(threads_of(config, local_ranks), local_ranks),
                         {place.ranks > 1 ? "mpi" : "self", place.ranks, place.hosts}};
  path = !place.profile.empty()           ? place.profile
         : config.overlap.profile.empty() ? place.default_profile
                                          : config.overlap.profile;
  if (place.profile.empty()) return cost::read_profile(path, here);
  return cost::read_profile_of_any_device(path, here, static_cast<int>(config.threads));
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
  result.all_to_alls = schedule::to_string(schedule::all_to_all_choice(costs, result.plan.program));
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
    measured->asked = requested_all_to_alls(config);
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
  profile.asked = requested_all_to_alls(config);
  LANCET_ASSIGN(PlannedStep result, planned(config, place, profile, path));
  result.costs = cost::to_string(profile.machine);
  result.profile = std::move(profile);
  return result;
}

}  // namespace lancet::planning
