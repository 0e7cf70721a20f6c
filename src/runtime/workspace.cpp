#include "lancet/runtime/executor.h"

#include "bound_plan.h"
#include "lancet/backend/cpu/parallel.h"

namespace lancet::runtime {
namespace {

// Kernel arguments with types and attributes but without addresses.
struct Types {
  const ir::Program& program;
  ops::KernelArgs arguments(const ir::Instruction& instruction) const {
    ops::KernelArgs args{.op = instruction.op, .operands = {}, .results = {}, .attributes = instruction.attributes};
    args.instruction = &instruction;
    for (const ir::TensorId id : instruction.operands) args.operands.push_back({nullptr, program[id].type});
    for (const ir::TensorId id : instruction.results) args.results.push_back({nullptr, program[id].type});
    return args;
  }
};

// Memory that the kernels allocate for themselves alone.
std::int64_t own_memory(const ir::Program& program, const Types& types, Accelerator& accelerator) {
  std::int64_t sum = 0;
  const auto add = [&](const ir::Instruction& instruction, ir::Stream) -> Status {
    const ops::DeviceKernel* kernel = accelerator.find_kernel(instruction.op);
    if (!kernel->own_memory) return {};
    ops::KernelArgs args = types.arguments(instruction);
    args.device = &accelerator.device();
    sum += static_cast<std::int64_t>(kernel->own_memory(args));
    return {};
  };
  LANCET_CHECK(ir::for_each_kernel(program, add).ok(), "sizes of own memory have no errors");
  return sum;
}

}  // namespace

Result<std::int64_t> planned_workspace(const ir::Plan& plan, Accelerator* accelerator, int threads) {
  const Types types{plan.program};
  std::array<std::size_t, ir::stream_count> streams{};
  std::int64_t sum = 0;
  if (accelerator) {
    LANCET_TRY(accelerator->device().bind_thread());
    LANCET_ASSIGN(streams, workspace_bytes(
                               plan, types, [&](std::string_view op) { return accelerator->find_kernel(op); },
                               &accelerator->device()));
    sum = own_memory(plan.program, types, *accelerator);
  } else {
    backend::cpu::set_threads(threads);  // the scratch of a kernel depends on it
    LANCET_ASSIGN(streams, workspace_bytes(plan, types, ops::find_cpu_kernel, nullptr));
  }
  for (const std::size_t bytes : streams) sum += static_cast<std::int64_t>(bytes);
  return sum;
}

}  // namespace lancet::runtime
