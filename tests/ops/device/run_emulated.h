// One call of an op's device kernel, emulated on the host.
#pragma once
#include "emulated_kernels.h"
#include "ops/device/launch.h"
#include "ops/references/harness.h"

namespace lancet::test {

inline constexpr std::uint64_t seed = 11;  // of the operands' values

// order: seeds the order of blocks and threads; 1 runs one block after the other, another value several at once.
inline Outcome run_emulated(const ops::OpDef& op, const std::vector<GuardedTensor>& operands,
                            const ir::Attributes& attributes, std::uint64_t order) {
  const ops::DeviceKernel* kernel = find_emulated_kernel(op.name);
  HostDevice device;
  HostStream stream;
  ops::device::emulated::order_seed = order;
  ops::device::emulated::places_at_once = order == 1 ? 1 : 3;  // blocks one after the other, and several at once
  Outcome outcome = run(op, operands, attributes, {kernel->bind, kernel->workspace, 1, {}, &device, &stream});
  if (stream.synchronized) outcome.faults.push_back("waited for the stream");
  return outcome;
}

}  // namespace lancet::test
