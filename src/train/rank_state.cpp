#include "rank_state.h"

#include <fmt/format.h>
#include <algorithm>
#include <new>

#include "lancet/backend/cpu/matmul.h"
#include "lancet/comm/collect.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ir/micro_batches.h"
#include "lancet/model/transformer.h"
#include "lancet/planner/from_config.h"
#include "lancet/run/saver.h"

namespace lancet::train {
namespace {

// Those of this rank.
std::vector<const ir::Plan*> all_of(const run::StepPlans& plans) {
  std::vector<const ir::Plan*> all{&plans.step()};
  if (!plans.evaluations.empty()) all.push_back(&plans.evaluations[plans.stage]);
  return all;
}

std::int64_t arena_bytes(const run::StepPlans& plans) {
  std::int64_t most = 0;
  for (const ir::Plan* plan : all_of(plans)) most = std::max(most, plan->arena_bytes);
  return most;
}

Result<runtime::Block> make_arena(std::int64_t bytes, const RankResources& resources) {
  const auto size = std::size_t(bytes);
  if (resources.accelerator) return runtime::Block::on_device(resources.accelerator->device(), size);
  try {
    return resources.emulated ? runtime::Block::reserved(size) : runtime::Block::on_host(size);
  } catch (const std::bad_alloc&) {
    return config_error(
        fmt::format("expected {} MB of free memory a rank for activations, found less", bytes / 1'000'000));
  }
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

BoundMicroBatch inputs_of(runtime::Executor& executor, std::int32_t micro) {
  BoundMicroBatch bound;
  auto ids = [&](const char* name) {
    const std::string input = ir::of_micro_batch(name, micro);
    if (!executor.plan().program.find(input).valid()) return std::span<std::int32_t>();
    const ops::TensorView view = executor.input(input);
    return std::span(view.as<std::int32_t>(), static_cast<std::size_t>(view.elements()));
  };
  bound.tokens = ids("tokens");
  bound.targets = ids("targets");
  bound.sequence = ids("sequence");
  bound.loss = executor.output(ir::of_micro_batch("loss", micro)).as<float>();
  return bound;
}

// Whether the instruction that makes the tensor is left to the next step.
bool is_of_step_before(const ir::Program& program, ir::TensorId made) {
  return std::ranges::any_of(program.instructions, [&](const ir::Instruction& at) {
    return ir::of_step_before(at) && std::ranges::count(at.results, made) > 0;
  });
}

std::string megabytes(std::int64_t bytes) { return fmt::format("{:.1f} MB", double(bytes) * 1e-6); }
std::string millions(std::int64_t count) { return fmt::format("{:.2f} M", double(count) * 1e-6); }

std::string describe(const config::Config& config, const RankResources& resources) {
  if (resources.accelerator)
    return resources.accelerator->device().name() + " (" + resources.accelerator->device().architecture() + ")";
  if (!resources.emulated) return fmt::format("cpu, {} thread{}", resources.threads, resources.threads == 1 ? "" : "s");
  return fmt::format("emulated {}: bytes / {}, times x {}, {} routing;", resources.emulated->hardware_names(),
                     config.emulated.scale, config.emulated.dilation, config.emulated.routing);
}

}  // namespace

Status check_least_memory(const planner::StepModel& model, int rank, const RankResources& resources) {
  LANCET_ASSIGN(const std::vector<planner::LeastMemory> stages, planner::least_memory(model));
  const int stage = config::mesh_of(model.config, model.ranks).coordinate(rank, ir::Axis::stage);
  const planner::LeastMemory& least = stages[std::size_t(stage)];
  return check_free(least.total(), least.parts(), resources);
}

Status TrainerMemory::count(const config::Config& config, const run::StepPlans& plans, int ranks,
                            const RankResources& resources) {
  for (const ir::Tensor& tensor : plans.step().program.tensors) {
    if (tensor.kind == ir::TensorKind::parameter) plan_.parameters += ir::bytes(tensor.type);
    if (tensor.kind == ir::TensorKind::state) plan_.state += ir::bytes(tensor.type);
  }
  plan_.arena = arena_bytes(plans);
  if (resources.emulated) return {};  // no kernel runs, and nothing is saved
  plan_.staging = run::staging_bytes(config, plans.step().program, config::mesh_of(config, ranks));
  plan_.workspace = resources.accelerator ? 0 : resources.threads * std::int64_t(backend::cpu::matmul_scratch_bytes());
  for (const ir::Plan* plan : all_of(plans)) {
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
    if (accelerator) store_.place_on(accelerator->device());
    store_.add(plans.step().program);
    for (std::size_t stage = 0; plans.steps.size() > 1 && stage < plans.steps.size(); ++stage)
      store_.add_stage(plans.steps[stage].program, int(stage));
  } catch (const std::bad_alloc&) {
    return config_error(fmt::format("expected {} MB of memory a rank, found less", needed / 1'000'000));
  }
  return {};
}

Status TrainerMemory::fit_arena(const config::Config& config, const run::StepPlans& plans,
                                comm::DeviceCommunicator* expert, const RankResources& resources) {
  const std::int64_t needed = arena_bytes(plans);
  if (needed <= std::int64_t(arena().bytes)) return {};
  plan_.arena = needed;
  arena_ = {};  // both at once may not fit
  window_ = {};
  if (resources.accelerator) {
    LANCET_ASSIGN(const auto window, run::make_arena_window(config, expert, std::size_t(needed)));
    window_ = {window.data(), window.size()};
  }
  if (!has_window()) {
    LANCET_ASSIGN(arena_, make_arena(needed, resources));
  }
  return {};
}

Status set_parameter(runtime::TensorStore& store, std::string_view name, std::span<const float> values) {
  const runtime::NamedTensor& parameter = store[name];
  LANCET_CHECK(std::int64_t(values.size()) == parameter.type.shape.elements(), "@{} has {} elements, not {}", name,
               parameter.type.shape.elements(), values.size());
  if (parameter.type.dtype != DType::bf16) return store.write(parameter, 0, std::as_bytes(values));
  std::vector<bf16> rounded(values.size());
  std::transform(values.begin(), values.end(), rounded.begin(), [](float x) { return from_f32<bf16>(x); });
  LANCET_TRY(store.write(parameter, 0, std::as_bytes(std::span(rounded))));
  const std::string master = ir::state_name(name, ir::StateKind::master);
  if (!store.find(master)) return {};
  const FlatRange held = store.range_of(master);
  return store.write(store[master], 0,
                     std::as_bytes(values.subspan(std::size_t(held.begin), std::size_t(held.size()))));
}

Status initialize_weights(const config::Config& config, runtime::TensorStore& store) {
  std::vector<float> values;
  const int tensor_ranks = store.mesh()[ir::Axis::tensor];
  for (const model::Parameter& parameter : model::parameters(config.model.on(store.mesh()), tensor_ranks)) {
    LANCET_CHECK(store.whole_shape(parameter.name) == parameter.shape, "@{} is [{}] in the model and [{}] in the plan",
                 parameter.name, to_string(parameter.shape), to_string(store.whole_shape(parameter.name)));
    store.set_padding(parameter.name, parameter.extra_rows);
    if (store[parameter.name].elsewhere) continue;
    values.resize(static_cast<std::size_t>(store[parameter.name].type.shape.elements()));
    model::initialize(parameter, static_cast<std::uint64_t>(config.train.seed), store.held(parameter.name), values);
    LANCET_TRY(set_parameter(store, parameter.name, values));
  }
  return {};
}

Result<BoundStep> BoundStep::bind(const ir::Plan& plan, runtime::TensorStore& store,
                                  const runtime::ExecutorOptions& options) {
  BoundStep bound;
  LANCET_ASSIGN(bound.executor, runtime::Executor::create(plan, store, options));
  runtime::Executor& executor = *bound.executor;
  for (std::int32_t micro = 0; micro < ir::micro_batches(plan.program); ++micro)
    bound.micro_batches.push_back(inputs_of(executor, micro));
  for (BoundMicroBatch& micro : bound.micro_batches) {  // of a pipeline stage that reads one of the two, or none
    bound.unread.resize(std::max(micro.tokens.size(), micro.targets.size()));
    if (micro.tokens.empty()) micro.tokens = bound.unread;
    if (micro.targets.empty()) micro.targets = bound.unread;
  }
  if (executor.has_output("grad_norm")) {
    bound.grad_norm = executor.output("grad_norm").as<float>();
    bound.schedule = executor.input("schedule").as<float>();
    const std::string before = ir::of_micro_batch("schedule", ir::step_before);
    if (plan.program.find(before).valid()) bound.schedule_before = executor.input(before).as<float>();
    bound.crosses_steps = ir::crosses_steps(plan.program);
    bound.norm_crosses = is_of_step_before(plan.program, plan.program.output("grad_norm"));
  }
  for (const ir::Output& output : plan.program.outputs) {
    LayerOutputs& layers = bound.micro_batches[std::size_t(output.micro_batch)].layers;
    const ops::TensorView view = executor.output(output.name);
    const auto values = [&] { return std::span(view.as<float>(), static_cast<std::size_t>(view.elements())); };
    if (output.kind == ir::OutputKind::aux) layers.aux.push_back(view.as<float>());
    if (output.kind == ir::OutputKind::z_loss) layers.z_loss.push_back(view.as<float>());
    if (output.kind == ir::OutputKind::load) layers.load.emplace_back(values());
    if (output.kind == ir::OutputKind::bias) layers.bias.emplace_back(values());
    if (output.kind == ir::OutputKind::rounds) layers.rounds.push_back(view.as<std::int32_t>());
  }
  return bound;
}

std::string banner(const config::Config& config, int ranks, const RankResources& resources,
                   const comm::NetworkReport& network, const MemoryPlan& memory, const Peak& peak) {
  const config::Model& model = config.model;
  const ir::Mesh mesh = config::mesh_of(config, ranks);
  const int among = mesh[ir::Axis::expert];
  const auto count = model::count_parameters(model.on(mesh));
  const config::Train& train = config.train;
  const int copies = mesh[ir::Axis::tensor];  // of each token, and shards of each expert
  const std::int64_t shared = model.family().gates_shared_expert ? 1 : model.n_shared_experts;
  std::string text = fmt::format(
      "model      {} blocks, {} of them MoE with {} experts ({} a rank{}){}, n_embd {}, {} heads, vocabulary {}\n",
      model.n_layer, model.moe_layers(), model.experts(among), model.experts(among) / among,
      copies > 1 ? fmt::format(", 1/{} of each", copies) : "",
      shared > 0 && model.has_moe() ? fmt::format(" and {} shared", shared) : "", model.n_embd, model.n_head,
      model.vocab_size);
  text += fmt::format("parameters {} in all, {} active for a token\n", millions(count.total), millions(count.active));
  const int shares = mesh.size(ir::batch_axes);
  text += fmt::format("batch      {} tokens a step: {} rank{} x {} sequences x {} tokens x {} micro batches{}\n",
                      shares * train.micro_batch_size * train.seq_len * train.gradient_accumulation_steps, shares,
                      shares == 1 ? "" : "s", train.micro_batch_size, train.seq_len, train.gradient_accumulation_steps,
                      copies > 1 ? fmt::format(", each token on {} ranks", copies) : "");
  if (ranks > 1) text += fmt::format("mesh       {}\n", ir::describe(mesh));
  text += fmt::format("device     {} a rank, {}\n", describe(config, resources),
                      train.dtype != DType::bf16 ? "fp32"
                      : train.master_weights     ? "bf16 with fp32 masters"
                                                 : "bf16, rounded stochastically");
  text += comm::to_string(network) + "\n";
  if (peak.flops > 0)
    text += fmt::format(
        "peak       {:.3f} TFLOP/s a rank ({}); MFU counts products and attention's causal half, experts on kept "
        "tokens\n",
        peak.flops * 1e-12, peak.source);
  text += fmt::format("memory     {} a rank: parameters {}, optimizer {}, arena {}, workspace {}, process {}",
                      megabytes(memory.total()), megabytes(memory.parameters), megabytes(memory.state),
                      megabytes(memory.arena), megabytes(memory.workspace), megabytes(memory.process));
  if (memory.staging > 0) text += fmt::format(", saving {}", megabytes(memory.staging));
  return text;
}

std::string memory_json(const MemoryPlan& memory) {
  return fmt::format(
      "{{\"parameters\": {}, \"optimizer\": {}, \"arena\": {}, \"workspace\": {}, \"process\": {}, \"saving\": {}}}\n",
      memory.parameters, memory.state, memory.arena, memory.workspace, memory.process, memory.staging);
}

std::string describe_plan(const ir::Plan& plan, const planner::PlanReport& report, int runs) {
  std::string text =
      fmt::format("policy     {}: {} instructions", plan.header.text("policy"), plan.program.instructions.size());
  if (plan.header.has("pipeline_schedule"))
    text += fmt::format(" on the first stage, {}", plan.header.text("pipeline_schedule"));
  if (runs > 1) text += fmt::format(", {} runs a step", runs);
  std::string why = report.why.empty() ? "" : "\nwhy        " + report.why;
  if (!report.why_not_across_steps.empty())
    why += "\nborder     each step ends before the next one begins: " + report.why_not_across_steps;
  if (const auto again = std::ranges::count(plan.program.instructions, ir::Role::recompute, &ir::Instruction::role))
    why += fmt::format("\nrecompute  {} instructions run again in the backward pass", again);
  if (!plan.header.has("predicted_ms")) return text + "; predicted step time n/a (no costs measured)" + why;
  text += fmt::format("; predicted {} {:.1f} ms, exposed {:.1f} ms", runs > 1 ? "run" : "step",
                      plan.header.real("predicted_ms"), plan.header.real("exposed_ms", 0));
  for (const planner::PolicyResult& result : report.policies) {
    if (result.policy == "sequential" && report.chosen != "sequential")
      text += fmt::format(" (sequential: {:.1f} ms, {:.1f} ms)", result.timeline.makespan, result.timeline.exposed);
    if (result.policy == report.chosen) text += "\nschedule   " + result.how;
  }
  return text + why;
}

}  // namespace lancet::train
