// The kernels of a plan on an emulated device.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "lancet/ops/kernel.h"
#include "lancet/runtime/emulated_device.h"
#include "pace.h"

namespace lancet::runtime {

class EmulatedKernels {
 public:
  // Both outlive this object.
  EmulatedKernels(const ir::Plan& plan, EmulatedDevice& device);
  Status find_costs();  // before bind(). Config error: an op has no declared cost

  // The kernel of an instruction, which this object outlives. args: as for the CPU's kernel.
  ops::Kernel bind(std::int32_t instruction, const ops::KernelArgs& args);
  void begin_run(bool has_body);                                              // without a body it has no micro batches
  void leave_out(std::int32_t instruction) { pace_.leave_out(instruction); }  // in place of calling its kernel
  double late_ns() const { return pace_.late_ns(); }                          // Pace::late_ns

 private:
  ops::Kernel message(std::int32_t instruction, ops::KernelArgs args);
  ops::Kernel scores(const ir::Instruction& at, const ops::KernelArgs& args) const;
  std::function<double()> declared(std::int32_t instruction, const ops::KernelArgs& args) const;

  const ir::Plan& plan_;
  EmulatedDevice& device_;
  Pace pace_;
  std::int64_t pass_ = 0;             // micro batches before the current run
  const std::vector<bool> computed_;  // by instruction
  const std::int64_t micro_batches_;  // of the plan
  std::vector<cost::OpCost> op_costs_;
  std::vector<std::unique_ptr<comm::Communicator>> scaled_;  // one for each kernel that sends
};

}  // namespace lancet::runtime
