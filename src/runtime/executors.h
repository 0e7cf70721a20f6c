// The executors there are.
#pragma once
#include "lancet/runtime/executor.h"

namespace lancet::runtime {

Result<std::unique_ptr<Executor>> make_cpu_executor(const ir::Plan& plan, TensorStore& store,
                                                    const ExecutorOptions& options);
// On options.accelerator.
Result<std::unique_ptr<Executor>> make_stream_executor(const ir::Plan& plan, TensorStore& store,
                                                       const ExecutorOptions& options);

}  // namespace lancet::runtime
