// Factories of the executors, one for each kind of device.
#pragma once
#include "lancet/runtime/executor.h"

namespace lancet::runtime {

Result<std::unique_ptr<Executor>> make_cpu_executor(const ir::Plan& plan, TensorStore& store,
                                                    const ExecutorOptions& options);
// Runs on options.accelerator.
Result<std::unique_ptr<Executor>> make_device_executor(const ir::Plan& plan, TensorStore& store,
                                                       const ExecutorOptions& options);

}  // namespace lancet::runtime
