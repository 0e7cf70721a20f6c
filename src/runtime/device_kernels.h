// DeviceKernels: the kernels of a plan on an accelerator, bound to their tensors, device streams and workspaces.
#pragma once
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "bound_plan.h"
#include "device_stream.h"
#include "lancet/runtime/block.h"
#include "lancet/runtime/watched_stream.h"

namespace lancet::runtime {

// By stream of the plan.
using DeviceQueues = std::array<std::unique_ptr<WatchedStream>, ir::stream_count>;
using Workspaces = std::array<Block, ir::stream_count>;

// The numbers of two or more instructions of one op, in the order in which they are called.
using InstructionRun = std::vector<std::int32_t>;

// The instructions without results that follow each other within a section, do not depend on each other, and that their
// op binds as one kernel (ops::DeviceKernel::bind_all). No flag is between them, so that their work may wait for the
// last one's call.
std::vector<InstructionRun> runs_of(const ir::Program& program, const Streams& streams, const FlagPlan& flags,
                                    const Accelerator& accelerator);

// The communicators of all groups, or of one stream's, each once.
std::vector<comm::DeviceCommunicator*> device_communicators(const ExecutorOptions& options);
std::vector<comm::DeviceCommunicator*> device_communicators(const comm::Groups& groups);

class DeviceKernels {
 public:
  // Reserves the communicators' memory, allocates the workspaces and binds the kernels. Logs their remarks, each once
  // per process. Error: an op has no kernel on the accelerator. All arguments outlive this object.
  // runs: instructions whose work one kernel does, when the last of them is called (runs_of).
  Status bind(const ir::Plan& plan, const Addresses& addresses, const ExecutorOptions& options,
              const DeviceQueues& queues, const std::vector<InstructionRun>& runs, Workspaces& workspaces);

  // Puts the instruction's work on its device stream.
  Status call(std::int32_t instruction) {
    return in_range(instruction, [&] { return runtime::call(kernels_[static_cast<std::size_t>(instruction)]); });
  }
  // Calls work() under the instruction's name in profilers.
  template <class Work>
  Status in_range(std::int32_t instruction, const Work& work) {
    device_->begin_range(names_[static_cast<std::size_t>(instruction)]);
    Status status = work();
    device_->end_range();
    return status;
  }

 private:
  backend::Device* device_ = nullptr;
  std::vector<ops::Kernel> kernels_;  // by instruction
  std::vector<std::string> names_;
};

}  // namespace lancet::runtime
