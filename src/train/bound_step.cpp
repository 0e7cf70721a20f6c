#include "bound_step.h"

namespace lancet::train {

Result<BoundStep> BoundStep::bind(const ir::Plan& plan, runtime::TensorStore& store,
                                  const runtime::ExecutorOptions& options) {
  BoundStep bound;
  LANCET_ASSIGN(bound.executor, runtime::Executor::create(plan, store, options));
  runtime::Executor& executor = *bound.executor;
  auto ids = [&](const char* name) {
    const ops::TensorView view = executor.input(name);
    return std::span(view.as<std::int32_t>(), static_cast<std::size_t>(view.elements()));
  };
  bound.tokens = ids("tokens");
  bound.targets = ids("targets");
  if (plan.program.find("sequence").valid()) bound.sequence = ids("sequence");
  bound.loss = executor.output("loss").as<float>();
  if (executor.has_output("grad_norm")) {
    bound.grad_norm = executor.output("grad_norm").as<float>();
    bound.schedule = executor.input("schedule").as<float>();
  }
  for (const ir::Output& output : plan.program.outputs) {
    const ops::TensorView view = executor.output(output.name);
    const auto values = [&] { return std::span(view.as<float>(), static_cast<std::size_t>(view.elements())); };
    if (output.kind == ir::OutputKind::aux) bound.layers.aux.push_back(view.as<float>());
    if (output.kind == ir::OutputKind::z_loss) bound.layers.z_loss.push_back(view.as<float>());
    if (output.kind == ir::OutputKind::load) bound.layers.load.emplace_back(values());
    if (output.kind == ir::OutputKind::bias) bound.layers.bias.emplace_back(values());
    if (output.kind == ir::OutputKind::rounds) bound.layers.rounds.push_back(view.as<std::int32_t>());
  }
  return bound;
}

}  // namespace lancet::train
