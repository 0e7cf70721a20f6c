#include "assign.h"
#include "lancet/backend/cpu/parallel.h"
#include "lancet/ops/kernel.h"

namespace lancet::ops {
namespace {

using routing::Service;

Kernel bind(const KernelArgs& args) {
  const routing::Decision gate = routing::decision_of(args, args.has(1) ? &args.operands[1] : nullptr);
  return [=]() -> Status {
    routing::assign_slots(gate, Service::by_token, {});
    return {};
  };
}

Kernel bind_by_choice(const KernelArgs& args) {
  const routing::Decision gate = routing::decision_of(args, nullptr);
  return [=]() -> Status {
    routing::assign_slots(gate, Service::by_choice, {});
    return {};
  };
}

// One sort key per token (routing::prioritize).
std::size_t keys_workspace(const KernelArgs& args) {
  return std::size_t(args.operands[0].shape()[0]) * sizeof(std::uint64_t);
}

Kernel bind_by_priority(const KernelArgs& args) {
  const routing::Decision gate = routing::decision_of(args, nullptr);
  const float* weight = args.operands[1].as<float>();  // [T, K]
  const std::span keys(reinterpret_cast<std::uint64_t*>(args.workspace), std::size_t(args.operands[0].shape()[0]));
  return [=]() -> Status {
    routing::prioritize(weight, gate.choices, keys);
    routing::assign_slots(gate, Service::by_choice, keys);
    return {};
  };
}

// Each expert has one key per token of a group.
std::size_t choosing_keys(const routing::Decision& gate) { return std::size_t(gate.entries / gate.groups); }
std::size_t choosing_workspace(const KernelArgs& args) {
  return choosing_keys(routing::decision_of(args, nullptr)) * sizeof(std::uint64_t);
}

Kernel bind_by_weight(const KernelArgs& args) {
  const routing::Decision gate = routing::decision_of(args, nullptr);
  const float* weight = args.operands[0].as<float>();  // [T, E]
  const std::span keys(reinterpret_cast<std::uint64_t*>(args.workspace), choosing_keys(gate));
  const std::size_t tokens = keys.size() / std::size_t(gate.experts);  // of a group
  const std::int64_t grain = std::max<std::int64_t>(1, 2048 * gate.experts / gate.entries);
  return [=]() -> Status {
    backend::cpu::parallel_for(gate.experts, grain, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t e = begin; e < end; ++e)
        routing::choose_tokens(gate, weight, e, keys.subspan(std::size_t(e) * tokens, tokens));
    });
    return {};
  };
}

const CpuKernel table[] = {
    {"slots", bind},
    {"slots_by_choice", bind_by_choice},
    {"slots_by_priority", bind_by_priority, keys_workspace},
    {"slots_by_weight", bind_by_weight, choosing_workspace},
};

}  // namespace

std::span<const CpuKernel> slots_cpu() { return table; }

}  // namespace lancet::ops
