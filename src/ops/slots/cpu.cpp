#include "assign.h"
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

// One sort key per entry.
std::size_t entry_keys_workspace(const KernelArgs& args) {
  return std::size_t(args.operands[0].elements()) * sizeof(std::uint64_t);
}

Kernel bind_by_weight(const KernelArgs& args) {
  const routing::Decision gate = routing::decision_of(args, nullptr);
  const float* weight = args.operands[1].as<float>();  // [T, K]
  const std::span keys(reinterpret_cast<std::uint64_t*>(args.workspace), std::size_t(gate.entries));
  return [=]() -> Status {
    routing::prioritize(weight, 1, keys);
    routing::assign_slots(gate, Service::by_weight, keys);
    return {};
  };
}

const CpuKernel table[] = {
    {"slots", bind},
    {"slots_by_choice", bind_by_choice},
    {"slots_by_priority", bind_by_priority, keys_workspace},
    {"slots_by_weight", bind_by_weight, entry_keys_workspace},
};

}  // namespace

std::span<const CpuKernel> slots_cpu() { return table; }

}  // namespace lancet::ops
