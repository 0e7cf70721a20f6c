// ProductLoop: keeps an accelerator's compute stream busy, as computation to measure communication against.
#pragma once
#include <memory>

#include "lancet/runtime/executor.h"

namespace lancet::profiler {

// Products of one size, one after the other. Collective if `world` is not null: all ranks use the same size and count.
class ProductLoop {
 public:
  // Chooses products as large as those of a training step on this device, and as many as last about `milliseconds`.
  static Result<std::unique_ptr<ProductLoop>> make(runtime::Accelerator& accelerator, comm::Communicator* world,
                                                   double milliseconds);
  // Runs all products; returns the milliseconds from the start of the first to the end of the last, by the device's
  // clock.
  Result<double> run();

 private:
  explicit ProductLoop(runtime::Accelerator& accelerator) : accelerator_(accelerator) {}
  Status bind(std::int64_t size, int count);

  runtime::Accelerator& accelerator_;
  runtime::TensorStore store_;
  std::unique_ptr<runtime::Executor> executor_;
};

}  // namespace lancet::profiler
