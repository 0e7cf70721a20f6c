#include "lancet/run/planned_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <functional>

#include "lancet/backend/cpu/parallel.h"
#include "lancet/planner/from_config.h"
#include "lancet/profiler/profiler.h"
#include "lancet/run/rank_device.h"
#include "lancet/run/step_costs.h"
#include "lancet/schedule/plan_memory.h"
#include "lancet/schedule/step.h"

namespace lancet::run {
namespace {

// The processor time of this thread, which does all the planning, so that other load does not count.
double processor_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) * 1e3 + double(now.tv_nsec) * 1e-6;
}

int local_ranks_of(const PlanTarget& target) { return (target.ranks + target.hosts - 1) / target.hosts; }

// True if the plan is for this machine and its ranks compute with more threads than it has cores.
bool is_crowded(const config::Config& config, const PlanTarget& target) {
  if (!target.hardware.empty() || !target.profile.empty() || config.device != config::Device::cpu) return false;
  const int local_ranks = local_ranks_of(target);
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

// Of the file that the target names, or else of this machine's. path: the file.
Result<cost::Profile> profile_for(const config::Config& config, const PlanTarget& target, std::string& path) {
  cost::Profile profile;
  path = target.profile;
  if (!path.empty()) {
    LANCET_ASSIGN(profile, named_profile(config, target));
  } else {
    const int local_ranks = local_ranks_of(target);
    const cost::Machine here{profiler::this_device(threads_of(config, local_ranks), local_ranks),
                             {target.ranks > 1 ? "mpi" : "self", target.ranks, target.hosts}};
    path = profile_path(config, target.profile_folder, here).string();
    LANCET_ASSIGN(profile, cost::read_profile(path, here));
  }
  profile.mesh = config::mesh_of(config, target.ranks);
  return profile;
}

// The plan of a file, with the times that it takes by these costs.
Result<PlannedStep> given(const planner::StepModel& model, const PlanTarget& target, const cost::Costs& costs) {
  PlannedStep result;
  LANCET_ASSIGN(result.plan, planner::read_plan(target.plan_file, model));
  LANCET_ASSIGN(const schedule::Timeline timeline, schedule::simulate(result.plan, costs));
  result.plan.predicted = timeline.when;
  result.plan.header.set("predicted_ms", timeline.makespan);
  result.plan.header.set("exposed_ms", timeline.exposed);
  const std::string policy = result.plan.header.text("policy");
  result.report.requested = result.report.chosen = policy;
  result.report.policies = {{policy, "as in " + target.plan_file, timeline, schedule::most_parts(result.plan.program),
                             result.plan.arena_bytes}};
  return result;
}

Result<PlannedStep> planned_with(const planner::StepModel& model, const PlanTarget& target, const cost::Costs& costs,
                                 const std::string& origin) {
  if (!target.plan_file.empty()) {
    LANCET_ASSIGN(PlannedStep result, given(model, target, costs));
    result.memory = schedule::plan_bytes(result.plan);
    return result;
  }
  PlannedStep result;
  result.crowded = is_crowded(model.config, target);
  // As on this host, unless the costs have memory of their own.
  const std::int64_t device_bytes = costs.free_bytes() || model.config.device == config::Device::cuda
                                        ? 0
                                        : bytes_for_plans(local_ranks_of(target), nullptr);
  if (device_bytes > 0) result.available_gib = double(device_bytes) / (1 << 30);
  const double start = processor_ms();
  auto plans = planner::plan_stages(model,
                                    {.costs = &costs,
                                     .crowded = result.crowded,
                                     .device_bytes = device_bytes,
                                     .compare = target.compare,
                                     .skip = target.skip,
                                     .keep_texts = target.keep_texts},
                                    &result.report, &result.stage_times);
  result.planning_ms = processor_ms() - start;
  if (!plans.ok()) return Error{plans.error().code, origin + ": " + plans.error().message, false};
  for (const ir::Plan& plan : *plans) result.memory = std::max(result.memory, schedule::plan_bytes(plan));
  result.plan = (*plans)[0];
  if (plans->size() > 1) result.stages = *std::move(plans);
  return result;
}

// loads: that the costs hold for; null: even ones.
Result<PlannedStep> planned(const planner::StepModel& model, const PlanTarget& target, const cost::Costs& costs,
                            const std::string& origin, const std::shared_ptr<const cost::Loads>& loads) {
  LANCET_ASSIGN(PlannedStep result, planned_with(model, target, costs, origin));
  if (loads && !loads->is_even()) {
    const auto even = costs.under(std::make_shared<const cost::Loads>(cost::Loads::even(loads->model())));
    const std::span<const ir::Plan> plans = result.stages.empty() ? std::span(&result.plan, 1) : result.stages;
    LANCET_ASSIGN(const schedule::StagesTimeline balanced,
                  schedule::simulate(plans, config::mesh_of(model.config, model.ranks), *even));
    result.balanced_ms = balanced.makespan;
  }
  return result;
}

// Those of --load; null without.
Result<std::shared_ptr<const cost::Loads>> loads_of(const config::Config& config, const PlanTarget& target) {
  if (target.load.empty()) return std::shared_ptr<const cost::Loads>();
  return read_loads("--load", target.load, config, {target.ranks, target.hosts});
}

std::string describe(const cost::Loads& loads, const std::string& text) {
  const cost::RankLoad load = loads.mean();
  // A sum of shares may be a little over 1.
  const double beyond = 100 * std::max(0.0, 1 - load.first.kept * std::min(loads.model().slots, 1.0));
  if (!loads.model().in_rounds)
    return fmt::format("{}: the fullest rank has {:.3f} times an even load, {:.2f}% of the choices are dropped", text,
                       load.first.fullest, beyond);
  return fmt::format(
      "{}: in the first round the fullest rank has {:.3f} times an even load, and {:.2f}% of the choices find no slot; "
      "a layer takes {:.2f} further rounds",
      text, load.first.fullest, beyond, load.rounds);
}

Status check_hosts(const PlanTarget& target) {
  if (target.hosts <= target.ranks) return {};
  return config_error(fmt::format("--hosts: expected at most the {} ranks, found {}", target.ranks, target.hosts));
}

// Config error, before planning, which takes long for a large step. available: bytes by stage.
Status check_memory(const planner::StepModel& model, const PlanTarget& target,
                    const std::function<double(int)>& available) {
  if (!target.must_fit) return {};
  LANCET_ASSIGN(const std::vector<planner::LeastMemory> stages, planner::least_memory(model));
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const planner::LeastMemory& least = stages[stage];
    if (double(least.total()) <= available(int(stage))) continue;
    return config_error(fmt::format(
        "{}: expected {} MB of memory a rank{} ({}), found {:.0f} MB", target.hardware, least.total() / 1'000'000,
        stages.size() > 1 ? fmt::format(" of stage {}", stage) : "", least.parts(), available(int(stage)) / 1e6));
  }
  return {};
}

// Of unlike hosts, the memory that is nearest to being full.
void set_memory_of_stages(PlannedStep& step, const runtime::EmulatedDevice& device) {
  double fullest = 0;
  for (std::size_t stage = 0; stage < step.stages.size(); ++stage) {
    const std::int64_t bytes = schedule::plan_bytes(step.stages[stage]), available = device.free_bytes(int(stage));
    if (double(bytes) / double(available) <= fullest) continue;
    fullest = double(bytes) / double(available);
    step.memory = bytes;
    step.available_gib = double(available) / (1 << 30);
  }
}

// The slots of the experts over the tokens that choose them. Experts that choose fill all their slots.
double slots_of(const config::Config& config) { return config.model.experts_choose() ? 1 : config.model.kept_factor(); }

// Plans for the emulated cluster of device = emulated; by default each host has one rank.
Result<PlannedStep> plan_emulated(const planner::StepModel& model, PlanTarget target) {
  const config::Config& config = model.config;
  if (target.hosts == 0) target.hosts = target.ranks;
  LANCET_TRY(check_hosts(target));
  LANCET_ASSIGN(auto given_loads, loads_of(config, target));
  LANCET_ASSIGN(const auto device,
                run::make_emulated_device(config, {target.ranks, target.hosts}, 0, std::move(given_loads)));
  target.hardware = device->hardware_names();
  LANCET_TRY(check_memory(model, target, [&](int stage) { return double(device->free_bytes(stage)); }));
  LANCET_ASSIGN(PlannedStep result,
                planned(model, target, device->slowest_costs(), target.hardware, device->options().loads));
  result.routing = device->costs().routing();
  result.costs = fmt::format(
      "emulated {}, declared: {} ranks on {} hosts; routing {}", target.hardware, target.ranks, target.hosts,
      describe(*result.routing.loads, target.load.empty() ? config.emulated.routing : target.load));
  result.available_gib = double(device->free_bytes(0)) / (1 << 30);
  set_memory_of_stages(result, *device);
  return result;
}

// Even routing does not depend on the capacity.
cost::Routing routing_of(const config::Config& config, const PlanTarget& target) {
  cost::Routing routing{.imbalance = target.imbalance, .padded = target.padded};
  if (target.imbalance == 1 && !target.padded) return routing;
  const std::int64_t experts = config.model.experts(config::mesh_of(config, target.ranks)[ir::Axis::expert]);
  routing.capacity = std::min(slots_of(config), double(experts) / double(config.model.num_experts_per_tok));
  return routing;
}

// Plans for a declared machine. Measured costs take precedence over declared ones.
Result<PlannedStep> plan_on(const planner::StepModel& model, PlanTarget target) {
  const config::Config& config = model.config;
  LANCET_ASSIGN(cost::Hardware hardware, cost::read_hardware(target.hardware));
  if (target.hosts == 0) target.hosts = hardware.nodes(target.ranks);
  LANCET_TRY(check_hosts(target));
  const double available_gib = hardware.device.memory_gib - hardware.device.reserved_gib;
  LANCET_TRY(check_memory(model, target, [&](int) { return available_gib * (1 << 30); }));
  std::optional<cost::Profile> measured;
  std::string path;
  if (!target.profile.empty()) {
    LANCET_ASSIGN(measured, profile_for(config, target, path));
  }
  cost::Routing routing = routing_of(config, target);
  LANCET_ASSIGN(routing.loads, loads_of(config, target));
  const cost::HardwareCosts costs(hardware, {target.ranks, target.hosts, config::mesh_of(config, target.ranks)},
                                  measured, routing);
  LANCET_ASSIGN(PlannedStep result, planned(model, target, costs, target.hardware, routing.loads));
  if (measured) result.profile = *std::move(measured);
  result.costs = costs.describe();
  if (routing.loads) result.costs += "; load " + describe(*routing.loads, target.load);
  result.routing = costs.routing();
  result.available_gib = available_gib;
  return result;
}

}  // namespace

Result<PlannedStep> plan_offline(const config::Config& config, PlanTarget target) {
  LANCET_TRY(config::check(config, target.ranks));
  const planner::StepModel model(config, target.ranks);
  if (!target.hardware.empty()) return plan_on(model, std::move(target));
  if (config.device == config::Device::emulated && target.profile.empty())
    return plan_emulated(model, std::move(target));
  target.hosts = std::max(1, target.hosts);
  LANCET_TRY(check_hosts(target));
  std::string path;
  LANCET_ASSIGN(cost::Profile profile, profile_for(config, target, path));
  LANCET_ASSIGN(const auto loads, loads_of(config, target));
  const auto loaded = loads ? profile.under(loads) : nullptr;
  LANCET_ASSIGN(PlannedStep result, planned(model, target, loaded ? *loaded : profile, path, loads));
  result.costs = cost::to_string(profile.machine);
  if (loads) result.costs += "; load " + describe(*loads, target.load);
  result.routing.loads = loads;
  result.profile = std::move(profile);
  return result;
}

}  // namespace lancet::run
