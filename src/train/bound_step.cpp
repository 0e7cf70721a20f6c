#include "bound_step.h"

#include <algorithm>

#include "lancet/ir/dependencies.h"
#include "lancet/ir/micro_batches.h"

namespace lancet::train {
namespace {

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

}  // namespace

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

}  // namespace lancet::train
