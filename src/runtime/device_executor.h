// Makes an executor that runs on an accelerator; Executor::create calls it.
#pragma once
#include "lancet/runtime/executor.h"

namespace lancet::runtime {

// Runs on options.accelerator.
Result<std::unique_ptr<Executor>> make_device_executor(const ir::Plan& plan, TensorStore& store,
                                                       const ExecutorOptions& options);

}  // namespace lancet::runtime
