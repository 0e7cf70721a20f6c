#include "trainer_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <new>

#include "lancet/backend/cpu/matmul.h"
#include "lancet/comm/collect.h"
#include "lancet/planner/from_config.h"
#include "lancet/run/saver.h"
#include "lancet/runtime/executor.h"

namespace lancet::train {
namespace {

std::array<const ir::Plan*, 2> all_of(const run::StepPlans& plans) {
  return {&plans.step, plans.evaluate ? &*plans.evaluate : nullptr};
}

std::int64_t arena_bytes(const run::StepPlans& plans) {
  std::int64_t most = 0;
  for (const ir::Plan* plan : all_of(plans))
    if (plan) most = std::max(most, plan->arena_bytes);
  return most;
}

runtime::Block make_arena(std::int64_t bytes, const RankResources& resources) {
  return resources.emulated ? runtime::Block::reserved(std::size_t(bytes))
                            : runtime::Block::on_host(std::size_t(bytes));
}

std::string where_of(const RankResources& resources) {
  if (resources.accelerator) return " on " + resources.accelerator->device().name();
  return resources.emulated ? " on " + resources.emulated->hardware().name : "";
}

// Config error: `needed` bytes, whose parts in MB are `parts`, are more than the rank's share of the free memory.
Status check_free(std::int64_t needed, const std::string& parts, const RankResources& resources) {
  auto available = run::available_bytes();
  if (available) *available /= resources.local_ranks;
  if (resources.accelerator) available = resources.accelerator->device().free_bytes();
  if (resources.emulated) available = resources.emulated->hardware().free_bytes();
  if (!available || needed <= *available) return {};
  return config_error(fmt::format("expected {} MB of free memory a rank{} ({}), found {} MB", needed / 1'000'000,
                                  where_of(resources), parts, *available / 1'000'000));
}

}  // namespace

Status check_least_memory(const config::Config& config, int rank, int ranks, const RankResources& resources) {
  LANCET_ASSIGN(const std::vector<planner::LeastMemory> stages, planner::least_memory(config, ranks));
  const int stage = config::mesh_of(config, ranks).coordinate(rank, ir::Axis::stage);
  const planner::LeastMemory& least = stages[std::size_t(stage)];
  return check_free(least.total(), least.parts(), resources);
}

Status TrainerMemory::count(const config::Config& config, const run::StepPlans& plans, int ranks,
                            const RankResources& resources) {
  for (const ir::Tensor& tensor : plans.step.program.tensors) {
    if (tensor.kind == ir::TensorKind::parameter) plan_.parameters += ir::bytes(tensor.type);
    if (tensor.kind == ir::TensorKind::state) plan_.state += ir::bytes(tensor.type);
  }
  plan_.arena = arena_bytes(plans);
  if (resources.emulated) return {};  // no kernel runs, and nothing is saved
  plan_.staging = run::staging_bytes(config, plans.step.program, config::mesh_of(config, ranks));
  plan_.workspace = resources.accelerator ? 0 : resources.threads * std::int64_t(backend::cpu::matmul_scratch_bytes());
  for (const ir::Plan* plan : all_of(plans)) {
    if (!plan) continue;
    LANCET_ASSIGN(const auto bytes, runtime::planned_workspace(*plan, resources.accelerator, resources.threads));
    plan_.workspace += bytes;
  }
  return {};
}

Status TrainerMemory::allocate(const config::Config& config, const run::StepPlans& plans, int ranks,
                               const RankResources& resources) {
  LANCET_TRY(count(config, plans, ranks, resources));
  runtime::Accelerator* accelerator = resources.accelerator;
  // Checkpoints are staged on the host, whatever the device.
  const std::int64_t needed =
      plan_.parameters + plan_.state + plan_.arena + plan_.workspace + (accelerator ? 0 : plan_.staging);
  std::string parts = fmt::format("{} parameters, {} optimizer, {} activations", plan_.parameters / 1'000'000,
                                  plan_.state / 1'000'000, plan_.arena / 1'000'000);
  if (!resources.emulated)
    parts += fmt::format(", {} scratch of kernels, {} for saving", plan_.workspace / 1'000'000,
                         accelerator ? 0 : plan_.staging / 1'000'000);
  LANCET_TRY(check_free(needed, parts, resources));
  try {
    if (resources.emulated) store_.reserve_only();
    if (accelerator)
      store_.place_on(accelerator->device());
    else
      arena_ = make_arena(plan_.arena, resources);
    store_.add(plans.step.program);
    for (std::size_t stage = 0; stage < plans.step_stages.size(); ++stage)
      store_.add_stage(plans.step_stages[stage].program, int(stage));
  } catch (const std::bad_alloc&) {
    return config_error(fmt::format("expected {} MB of memory a rank, found less", needed / 1'000'000));
  }
  return {};
}

Status TrainerMemory::grow_arena(const run::StepPlans& plans, const RankResources& resources) {
  const std::int64_t needed = arena_bytes(plans);
  if (needed <= plan_.arena) return {};
  arena_ = {};  // both at once may not fit
  try {
    arena_ = make_arena(needed, resources);
  } catch (const std::bad_alloc&) {
    return config_error(fmt::format(
        "overlap.replan: expected {} MB of free memory a rank for the activations of a new plan, found less",
        needed / 1'000'000));
  }
  plan_.arena = needed;
  return {};
}

Status TrainerMemory::allocate_device_arena(const config::Config& config, comm::Communicator& world,
                                            comm::DeviceCommunicator* expert, runtime::Accelerator& accelerator) {
  const auto bytes = std::size_t(plan_.arena);
  LANCET_ASSIGN(const auto window, run::make_arena_window(config, expert, bytes));
  if (!window.empty()) {
    window_ = {window.data(), window.size()};
    return {};
  }
  auto arena = runtime::Block::on_device(accelerator.device(), bytes);
  LANCET_TRY(comm::agree(world, arena.ok() ? Status() : Status(arena.error())));
  arena_ = std::move(*arena);
  return {};
}

}  // namespace lancet::train
