// A busy compute stream on an accelerator.
#pragma once
#include <memory>

#include "lancet/runtime/executor.h"

namespace lancet::profiler {

// Products of one size, one after the other. Collective where `world` is not null: all ranks take one size and count.
class ProductLoop {
 public:
  // As many as take about `milliseconds`, each as large as products of a training step are for this device.
  static Result<std::unique_ptr<ProductLoop>> make(runtime::Accelerator& accelerator, comm::Communicator* world,
                                                   double milliseconds);
  // Runs them all; milliseconds from the start of the first to the end of the last, on the device.
  Result<double> run();

 private:
  explicit ProductLoop(runtime::Accelerator& accelerator) : accelerator_(accelerator) {}
  Status bind(std::int64_t size, int count);

  runtime::Accelerator& accelerator_;
  runtime::TensorStore store_;
  std::unique_ptr<runtime::Executor> executor_;
};

}  // namespace lancet::profiler
