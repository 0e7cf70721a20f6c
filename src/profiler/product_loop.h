// ProductLoop: products on an accelerator, to find its peak and as computation to measure communication against.
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
  // Binds `count` products of size^3 to memory, and runs them once to load code and choose algorithms.
  explicit ProductLoop(runtime::Accelerator& accelerator) : accelerator_(accelerator) {}
  Status bind(DType dtype, std::int64_t size, int count);
  // Runs all products; returns the milliseconds from the start of the first to the end of the last, by the device's
  // clock.
  Result<double> run();
  std::span<const runtime::Span> spans() const { return executor_->spans(); }  // of the last run's products

 private:
  runtime::Accelerator& accelerator_;
  runtime::TensorStore store_;
  std::unique_ptr<runtime::Executor> executor_;
};

}  // namespace lancet::profiler
