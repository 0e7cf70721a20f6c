#include "executors.h"

namespace lancet::runtime {

Result<std::unique_ptr<Executor>> Executor::create(const ir::Plan& plan, TensorStore& store,
                                                   const ExecutorOptions& options) {
  return options.accelerator ? make_device_executor(plan, store, options) : make_cpu_executor(plan, store, options);
}

}  // namespace lancet::runtime
